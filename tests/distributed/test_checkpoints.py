"""A checkpoint of any layout, loaded on any other, goes on as if nothing had happened."""

import io
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.histories import untimed
from tests.support.poison import after_backwards
from tests.support.running_ranks import run_on_running_ranks
from tests.support.saved_tensors import tensors

from mimo_launch.checkpoint import loading
from mimo_launch.checkpoint import saver as saver_module
from mimo_launch.checkpoint.boxes import Box, differences, weight_boxes
from mimo_launch.checkpoint.folder import (
    DamagedCheckpoint,
    all_checkpoints,
    complete,
    crc_of,
    folder_name,
    is_complete,
    read_marker,
)
from mimo_launch.checkpoint.index import TENSORS, read_index
from mimo_launch.checkpoint.loading import start_run
from mimo_launch.checkpoint.saver import CheckpointSaver
from mimo_launch.checkpoint.storage import CheckpointError, read_boxes, write_boxes
from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order import sample_order
from mimo_launch.data.order.sample_order import GlobalOrder
from mimo_launch.estimate.memory import checkpoint_bytes
from mimo_launch.launcher.run_on_ranks import RankError, run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Phase, Progress, RunState
from mimo_launch.runtime.step_state import StepState
from mimo_launch.spec.load import MARKER
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import (
    CheckpointFailed,
    CheckpointPassedOver,
    CheckpointSaved,
    EvalFinished,
    RunFinished,
    RunResumed,
    RunStopped,
    StepFinished,
    WeightsLoaded,
)
from mimo_launch.train.loop import CheckpointNotWritten, Hooks, train
from mimo_launch.train.non_finite import NonFiniteRun
from mimo_launch.train.rank_session import RankSession

VISION = {"kind": "vit", "layers": 2, "hidden": 24, "heads": 6, "patch": 4}
LANGUAGE = {
    "kind": "decoder", "layers": 4, "hidden": 24, "heads": 6, "kv_heads": 6, "head_dim": 4,
    "mlp": 48, "vocab": "digits", "vocab_multiple": 48, "qk_norm": True,
}  # fmt: skip
SP, FULL = {"sequence_parallel": True}, {"sharding": "full"}

LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {"vision": ("0", {}), "language": ("0", {})},
    "colocated dp4": {"vision": ("0-3", {"dp": 4}), "language": ("0-3", {"dp": 4})},
    "colocated dp4, tp2 dp2": {
        "vision": ("0-3", {"dp": 4}), "language": ("0-3", {"tp": 2, "dp": 2}),
    },
    "colocated dp2, tp2": {"vision": ("0-1", {"dp": 2}), "language": ("0-1", {"tp": 2})},
    "disjoint dp2, tp2": {"vision": ("0-1", {"dp": 2}), "language": ("2-3", {"tp": 2})},
    "disjoint dp4, tp2 dp2": {
        "vision": ("0-3", {"dp": 4}), "language": ("4-7", {"tp": 2, "dp": 2}),
    },
    "disjoint dp2, tp3": {"vision": ("0-1", {"dp": 2}), "language": ("2-4", {"tp": 3})},
    "tp3 and pp2": {"vision": ("0-2", {"tp": 3}), "language": ("3-4", {"pp": 2})},
    "pp2": {"vision": ("0-1", {"dp": 2}), "language": ("2-5", {"pp": 2, "dp": 2})},
    "interleaved": {"vision": ("0", {}), "language": ("1-2", {"pp": 2}), "virtual": 2},
    "encoder pp2": {"vision": ("0-1", {"pp": 2}), "language": ("2-3", {"dp": 2})},
    "cp2": {"vision": ("0", {}), "language": ("1-2", {"cp": 2})},
    "cp2 tp2 sp": {"vision": ("0-1", {"tp": 2}, SP), "language": ("2-5", {"tp": 2, "cp": 2}, SP)},
    "fully sharded dp4": {
        "vision": ("0-1", {"dp": 2}, FULL), "language": ("0-3", {"dp": 4}, FULL),
    },
    "overlap": {"vision": ("0-3", {"dp": 4}), "language": ("2-5", {"tp": 2, "dp": 2})},
    "language first": {"vision": ("2-3", {"dp": 2}), "language": ("0-1", {"tp": 2})},
}  # fmt: skip

PAIRS = [
    ("colocated dp4, tp2 dp2", "disjoint dp4, tp2 dp2"),
    ("disjoint dp4, tp2 dp2", "colocated dp4"),
    ("pp2", "disjoint dp2, tp2"),
    ("disjoint dp2, tp2", "pp2"),
    ("disjoint dp2, tp2", "disjoint dp2, tp3"),
    ("tp3 and pp2", "colocated dp4, tp2 dp2"),
    ("colocated dp4", "one rank"),
    ("one rank", "fully sharded dp4"),
    ("fully sharded dp4", "cp2 tp2 sp"),
    ("cp2", "disjoint dp2, tp2"),
    ("cp2 tp2 sp", "one rank"),
    ("disjoint dp4, tp2 dp2", "disjoint dp2, tp3"),
    ("interleaved", "pp2"),
    ("encoder pp2", "overlap"),
    ("overlap", "interleaved"),
    ("disjoint dp2, tp2", "language first"),
]


def make_spec(layout: str, steps: int, **sections: Any) -> Spec:
    chosen = LAYOUTS[layout]
    modules = {}
    for name, model in (("vision", VISION), ("language", LANGUAGE)):
        ranks, grid, *more = chosen[name]
        modules[name] = {"model": model, "ranks": ranks, "grid": grid, **(more[0] if more else {})}
    for path, value in sections.pop("modules", {}).items():
        modules[path[0]] = {**modules[path[0]], path[1]: value}
    virtual = chosen.get("virtual", 1)
    kind = "interleaved" if virtual > 1 else "1f1b"
    return Spec.model_validate(
        {
            "version": 1,
            "name": "saved",
            "modules": modules,
            "schedule": {"kind": kind, "microbatches": 2, "virtual_stages": virtual},
            "batch": {"global": 8, "seq": 40},
            "data": {"kind": "digits"},
            "optimizer": {"kind": "adamw", "lr": 5e-3, "weight_decay": 0.1, "clip": 1.0},
            "train": {"steps": steps, "seed": 3, "precision": "fp64"},
            "checkpoint": {"every": 3, "keep": 2},
            **sections,
        }
    )


def run_on_rank(spec: Spec, folder: Path) -> list[Any]:
    events: list[Any] = []
    with RankSession(Plan.of(spec), draw=False) as session:
        state, saver = start_run(session, folder, events.append)
        train(session, events.append, Hooks(saver=saver), state)
    return events


def run(spec: Spec, folder: Path) -> list[Any]:
    """Train in a run folder; return the events of rank 0."""
    assert not [d for d in check(spec) if d.is_error]
    return run_on_running_ranks(run_on_rank, spec, folder, world_size=world_size(spec))[0]


def run_anew(spec: Spec, folder: Path) -> list[Any]:
    """Train on new ranks, which know nothing of earlier runs and inherit what is patched."""
    assert not [d for d in check(spec) if d.is_error]
    return run_ranks(run_on_rank, spec, folder, world_size=world_size(spec))[0]


def loading_phases(spec: Spec, folder: Path) -> list[Phase]:
    """Return what a rank says that it does between its modules and its first step."""
    seen: list[Phase] = []

    class Noting(Progress):
        def enter(self, phase: Phase, step: int | None = None) -> None:
            seen.append(phase)
            super().enter(phase, step)

    with RankSession(Plan.of(spec), draw=False, progress=Noting()) as session:
        seen.clear()
        start_run(session, folder, lambda event: None)
    return seen


def test_a_rank_says_that_it_loads_only_where_there_is_something_to_load(tmp_path: Path) -> None:
    """Drawing comes last on all ranks: one that waits there is ahead of one that still loads."""
    made, first, last = make_spec("one rank", 3), Phase.LOOKING, Phase.DRAWING
    assert run_ranks(loading_phases, made, tmp_path, world_size=1) == [[first, last]]
    run(made, tmp_path)
    seen = [first, Phase.LOADING, last]
    assert run_ranks(loading_phases, made, tmp_path, world_size=1) == [seen] == [sorted(seen)]


def numbers(events: list[Any]) -> dict[int, dict[str, float]]:
    """Loss and norms by step."""
    return {
        e.step: {"loss": e.loss, "norm": e.grad_norm, **e.grad_norms}
        for e in events
        if isinstance(e, StepFinished)
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs of six steps per source layout, whose newest checkpoint is the one after step 3."""
    runs: dict[str, tuple[Path, dict[int, dict[str, float]]]] = {}

    def get(layout: str) -> tuple[Path, dict[int, dict[str, float]]]:
        if layout not in runs:
            folder = tmp_path_factory.mktemp("run")
            events = run(make_spec(layout, 6), folder)
            newest = all_checkpoints(folder)[0]
            assert newest.name == "step-00000006"
            newest.rename(folder / "end")
            runs[layout] = folder, numbers(events)
        return runs[layout]

    return get


@pytest.mark.parametrize(
    ("source", "target"),
    [PAIRS[1], *(pytest.param(*p, marks=pytest.mark.faults) for p in PAIRS[:1] + PAIRS[2:])],
)
def test_a_run_goes_on_on_another_layout(
    source: str, target: str, saved: Any, tmp_path: Path
) -> None:
    """AdamW, float64: the three steps after the checkpoint equal those of the source layout."""
    folder, uninterrupted = saved(source)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000003").symlink_to(folder / "checkpoints/step-00000003")
    events = run(make_spec(target, 6), tmp_path)
    [resumed] = [e for e in events if isinstance(e, RunResumed)]
    assert resumed.step == 3
    found = numbers(events)
    assert sorted(found) == [4, 5, 6]
    for step, values in found.items():
        assert values == pytest.approx(uninterrupted[step], rel=1e-9), step


def test_a_run_saves_at_its_end_unless_it_is_told_not_to(tmp_path: Path) -> None:
    """Without a section, and with one that says no `every`; as many bytes as were expected."""
    first = make_spec("one rank", 1, checkpoint=None, modules={("vision", "frozen"): True})
    run(first, tmp_path)
    [saved] = all_checkpoints(tmp_path)
    assert (saved.name, is_complete(saved)) == ("step-00000001", True)
    index = read_index(saved)
    found = sum(prod(e.shape) * getattr(torch, e.dtype).itemsize for e in index.values())
    assert checkpoint_bytes(first) == found
    events = run(make_spec("one rank", 2, checkpoint={"keep": 1}), tmp_path)
    assert [e.step for e in events if isinstance(e, RunResumed | CheckpointSaved)] == [1, 2]
    events = run(make_spec("one rank", 3, checkpoint="none"), tmp_path)
    assert [path.name for path in all_checkpoints(tmp_path)] == ["step-00000002"]
    assert (events[-1].steps, events[-1].saved) == (3, False)
    # Without `every`, those that stay are saved all the same.
    run(make_spec("one rank", 6, checkpoint={"keep": 1, "keep_every": 4}), tmp_path)
    assert [path.name[-1] for path in all_checkpoints(tmp_path)] == ["6", "4"]


def test_a_packed_run_goes_on_on_another_layout(tmp_path: Path) -> None:
    """Parallelism: vision dp 2, language tp 2; then dp 4. Epochs are shorter than steps."""
    sections = {
        "data": {"kind": "digits", "packing": True, "samples": 30},
        "batch": {"global": 8, "seq": 80},
    }
    source, target = tmp_path / "source", tmp_path / "target"
    events = run(make_spec("disjoint dp2, tp2", 6, **sections), source)
    tokens = [event.tokens for event in events if isinstance(event, StepFinished)]
    assert min(tokens) > 0.7 * 8 * 80
    (target / "checkpoints").mkdir(parents=True)
    saved = "checkpoints/step-00000003"
    (target / saved).symlink_to(source / saved)
    found = numbers(run_anew(make_spec("colocated dp4", 6, **sections), target))
    assert sorted(found) == [4, 5, 6]
    for step, values in found.items():
        assert values == pytest.approx(numbers(events)[step], rel=1e-9), step


def exact(events: list[Any]) -> dict[int, Any]:
    """Everything in a step's record that is not a time."""
    return {e.step: untimed(e) for e in events if isinstance(e, StepFinished)}


@pytest.mark.parametrize(
    "layout",
    [
        "pp2",
        pytest.param("disjoint dp4, tp2 dp2", marks=pytest.mark.faults),
        pytest.param("fully sharded dp4", marks=pytest.mark.faults),
    ],
)
def test_a_run_on_the_same_layout_resumes_bit_by_bit(layout: str, tmp_path: Path) -> None:
    """With an evaluation before the save, whose gathered weights must not get in the way."""
    sections = {"eval": {"every": 3, "samples": 8, "at_start": True}}
    events = run(make_spec(layout, 6, **sections), tmp_path)
    all_checkpoints(tmp_path)[0].rename(tmp_path / "end")
    again = run_anew(make_spec(layout, 6, **sections), tmp_path)
    assert {step: exact(events)[step] for step in (4, 5, 6)} == exact(again)
    evaluated = [[e.step for e in part if isinstance(e, EvalFinished)] for part in (events, again)]
    assert evaluated == [[0, 3, 6], [6]], "only a run that starts is evaluated at its start"


@pytest.mark.parametrize(
    "forgotten", ["set_update_counts", pytest.param("state_boxes", marks=pytest.mark.faults)]
)
def test_forgetting_a_part_of_the_state_shows(
    forgotten: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted bugs: AdamW's step count, or its moments, are not loaded."""
    events = run(make_spec("colocated dp4", 6), tmp_path)
    all_checkpoints(tmp_path)[0].rename(tmp_path / "end")

    def weights_only(modules: Any, _: Any) -> Any:
        return [chunk for module in modules.values() for chunk in weight_boxes(module)]

    planted = {"set_update_counts": lambda *_: None, "state_boxes": weights_only}
    monkeypatch.setattr(loading, forgotten, planted[forgotten])
    again = numbers(run_anew(make_spec("colocated dp4", 6), tmp_path))
    assert again[6]["loss"] != pytest.approx(numbers(events)[6]["loss"], rel=1e-6)


def test_old_checkpoints_go_and_damaged_ones_are_passed_over(tmp_path: Path) -> None:
    """Of three, `keep: 2` leaves two; with a flipped bit in the newest the older one is taken."""
    spec = make_spec("disjoint dp2, tp2", 9)
    started = time.perf_counter()
    events = run(spec, tmp_path)
    elapsed = time.perf_counter() - started
    saves = [e for e in events if isinstance(e, CheckpointSaved)]
    assert [e.step for e in saves] == [3, 6, 9]
    assert [path.name for path in all_checkpoints(tmp_path)] == ["step-00000009", "step-00000006"]
    assert all(0 < e.stall_s <= e.seconds < elapsed for e in saves)
    newest = all_checkpoints(tmp_path)[0]
    written = [f for f in newest.iterdir() if f.name != "checkpoint.json"]
    assert len(written) > 4
    assert sum(f.stat().st_size for f in written) == saves[-1].num_bytes
    (tmp_path / "checkpoints" / "step-00000012.partial").mkdir()
    file = newest / "__1_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    again = run_anew(spec, tmp_path)
    passed = [e for e in again if isinstance(e, CheckpointPassedOver)]
    assert [Path(e.checkpoint).name for e in passed] == ["step-00000012.partial", "step-00000009"]
    assert "not completed" in passed[0].reason
    assert "__1_0.distcp is damaged" in passed[1].reason
    assert exact(again) == {step: exact(events)[step] for step in (7, 8, 9)}
    complete = [path.name for path in all_checkpoints(tmp_path) if is_complete(path)]
    assert complete == ["step-00000009", "step-00000006"]
    assert newest.with_name("step-00000009.damaged").is_dir()
    assert not newest.with_name("step-00000012.partial").exists()


def run_with_bad_steps(spec: Spec, folder: Path, bad: tuple[int, ...]) -> list[Any]:
    events: list[Any] = []
    with RankSession(Plan.of(spec)) as session:

        def spoil(step: StepState) -> None:
            if step.data.step + 1 in bad:
                step.losses["language"].fill_(float("nan"))

        after_backwards(session, spoil)
        state, saver = start_run(session, folder, events.append)
        train(session, events.append, Hooks(saver=saver), state)
    return events


def save_at_once(spec: Spec, folder: Path) -> None:
    with RankSession(Plan.of(spec)) as session:
        state, saver = start_run(session, folder, print)
        assert saver is not None
        saver.save(state)
        saver.finish()


def state_again(spec: Spec, folder: Path, state: RunState) -> RunState:
    """Save a state, and return what a run resumes with."""
    with RankSession(Plan.of(spec)) as session:
        _, saver = start_run(session, folder, print)
        assert saver is not None
        saver.save(state)
        saver.finish()
        return start_run(session, folder, print)[0]


def test_a_resumed_run_goes_on_counting_steps_and_samples_that_were_skipped(
    tmp_path: Path,
) -> None:
    """And in the order of samples in which it began."""
    state = RunState(step=3, samples=24, skipped=2, bad_samples=5, order=1)
    spec = make_spec("one rank", 6)
    assert run_on_running_ranks(state_again, spec, tmp_path, state, world_size=1) == [state]


def ids_of_the_next_step(spec: Spec, state: RunState) -> list[int]:
    found: list[int] = []
    with RankSession(Plan.of(spec)) as session:
        after_backwards(session, lambda step: found.extend(each.id for each in step.data.samples))
        train(session, lambda event: None, state=state)
    return found


@pytest.mark.parametrize("version", [1, 2])
def test_a_run_takes_its_next_samples_in_the_order_in_which_it_began(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two versions of the order differ for large sets only."""
    monkeypatch.setattr(sample_order, "LARGE", 10)
    spec, state = make_spec("one rank", 4), RunState(step=3, samples=24, order=version)
    number, seed = build_dataset(spec).num_samples("train"), spec.train.seed
    old, new = (GlobalOrder(number, 8, seed, version=each).take(24) for each in (1, 2))
    assert old != new
    [found] = run_ranks(ids_of_the_next_step, spec, state, world_size=1)
    assert (*found,) == (old, new)[version - 1]


def test_a_save_before_the_first_update_counts_none(tmp_path: Path) -> None:
    """Bias correction begins with the first update."""
    run_on_running_ranks(save_at_once, make_spec("one rank", 3), tmp_path, world_size=1)
    [saved] = all_checkpoints(tmp_path)
    assert set(read_marker(saved).updates.values()) == {0}


@pytest.mark.usefixtures("late")
def test_nothing_is_saved_while_steps_are_skipped(tmp_path: Path) -> None:
    """A save is due after step 3, in the middle of two bad steps: it follows the next good one.

    The last step is saved in any case.
    """
    spec = make_spec("one rank", 6)
    [events] = run_ranks(run_with_bad_steps, spec, tmp_path, (3, 4, 6), world_size=1)
    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [5, 6]


@pytest.mark.usefixtures("late")
def test_a_run_of_skipped_steps_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="all 3 steps were skipped"):
        run_ranks(run_with_bad_steps, make_spec("one rank", 3), tmp_path, (1, 2, 3), world_size=1)
    assert not any(is_complete(path) for path in all_checkpoints(tmp_path))


def run_into_bad_numbers(spec: Spec, folder: Path) -> None:
    """Every step after the third is bad, and writing takes its time."""
    write = saver_module.write_boxes

    def slowly(*args: Any) -> None:
        time.sleep(1)
        write(*args)

    saver_module.write_boxes = slowly
    with pytest.raises(NonFiniteRun):
        run_with_bad_steps(spec, folder, (4, 5, 6))


def run_while_a_save_waits(spec: Spec, folder: Path) -> list[CheckpointSaved]:
    """Train; the thread of the first save begins 0.4 s after the last step, as the next one waits.

    So whatever a save still reads of the run after it returns is that of a later step.
    """
    is_later, saves = threading.Event(), list[CheckpointSaved]()

    class LateThread(ThreadPoolExecutor):
        def submit(self, write: Any, /, *args: Any, **more: Any) -> Any:
            def late() -> Any:
                assert is_later.wait(60)
                return write(*args, **more)

            return super().submit(late)

    def hear(event: Any) -> None:
        if isinstance(event, StepFinished) and event.step == spec.train.steps:
            threading.Timer(0.4, is_later.set).start()
        if isinstance(event, CheckpointSaved):
            saves.append(event)

    saver_module.ThreadPoolExecutor = LateThread
    with RankSession(Plan.of(spec)) as session:
        state, saver = start_run(session, folder, hear)
        train(session, hear, Hooks(saver=saver), state)
    return saves


def test_a_save_under_way_holds_the_step_at_which_it_began(tmp_path: Path) -> None:
    """Everything in it equals that of a run that waits for the disk while it saves."""
    events = run(make_spec("one rank", 3, checkpoint={"asynchronous": False}), tmp_path / "waits")
    [stood] = [event for event in events if isinstance(event, CheckpointSaved)]
    assert 0 < stood.stall_s == stood.seconds, "a save that waits for the disk stops training"
    [at_once] = map(read_marker, all_checkpoints(tmp_path / "waits"))
    spec = make_spec("one rank", 6, checkpoint={"every": 3, "asynchronous": True})
    [[began, waited]] = run_ranks(run_while_a_save_waits, spec, tmp_path / "goes on", world_size=1)
    # Training goes on during the first save; the second waits for it, too.
    assert began.stall_s < began.seconds - 0.3
    assert waited.stall_s > 0.1
    all_checkpoints(tmp_path / "goes on")[0].rename(tmp_path / "end")
    expected, found = (tensors(tmp_path / name) for name in ("waits", "goes on"))
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
    # Each tensor has its count: another layout may hold apart what is one parameter here.
    marker = read_marker(all_checkpoints(tmp_path / "goes on")[0])
    assert (marker.counts, marker.updates) == (at_once.counts, at_once.updates)
    names = {n.removeprefix("exp_avg/") for n in found if n.startswith("exp_avg/")}
    assert marker.updates == dict.fromkeys(names, 3)


def stopped_while_a_save_is_written(spec: Spec, folder: Path) -> RunStopped:
    """Train; a signal comes before the second step, and only then the first save is written."""
    write, is_stopped, calls, events = saver_module.write_boxes, threading.Event(), 0, list[Any]()

    def late(*args: Any) -> None:
        assert is_stopped.wait(60)
        write(*args)

    def stop() -> int:
        nonlocal calls
        calls += 1
        if calls < 2:
            return 0
        is_stopped.set()
        return 15

    saver_module.write_boxes = late
    with RankSession(Plan.of(spec)) as session:
        state, saver = start_run(session, folder, events.append)
        train(session, events.append, Hooks(saver=saver, stop=stop), state)
    saved = [event.step for event in events if isinstance(event, CheckpointSaved)]
    assert saved == [1, 2]
    [stopped] = [event for event in events if isinstance(event, RunStopped)]
    return stopped


def test_a_stopped_run_names_its_last_save_and_not_one_that_was_under_way(tmp_path: Path) -> None:
    spec = make_spec("one rank", 6, checkpoint={"every": 1, "asynchronous": True})
    [stopped] = run_ranks(stopped_while_a_save_is_written, spec, tmp_path, world_size=1)
    assert stopped.step == 2
    assert stopped.checkpoint == str(all_checkpoints(tmp_path)[0])
    assert stopped.checkpoint.endswith("step-00000002")


@pytest.mark.usefixtures("late")
def test_a_save_under_way_survives_a_run_that_ends_itself(tmp_path: Path) -> None:
    spec = make_spec("disjoint dp2, tp2", 9, train={"steps": 9, "max_skipped": 2})
    run_ranks(run_into_bad_numbers, spec, tmp_path, world_size=world_size(spec))
    assert [path.name for path in all_checkpoints(tmp_path)] == ["step-00000003"]


def test_if_all_are_damaged_the_run_does_not_start_over(tmp_path: Path) -> None:
    spec = make_spec("one rank", 3)
    run(spec, tmp_path)
    marker = all_checkpoints(tmp_path)[0] / "checkpoint.json"
    marker.write_text(marker.read_text()[:-10])
    for _ in range(2):  # The first attempt sets it aside.
        with pytest.raises(RankError, match=r"every checkpoint of .* is damaged"):
            run(spec, tmp_path)


def test_another_model_is_refused_with_the_names_that_differ(tmp_path: Path) -> None:
    run(make_spec("one rank", 3), tmp_path)
    wider = make_spec("one rank", 3, modules={("vision", "model"): {**VISION, "mlp": 48}})
    with pytest.raises(RankError, match=r"vision\.layers\.0\.mlp\S* \(96x24 there, 48x24 here\)"):
        run(wider, tmp_path)


def test_a_module_starts_from_the_weights_of_another_run(tmp_path: Path) -> None:
    """Vision alone, on another layout: its weights, not its moments; language from the seed."""
    run(make_spec("colocated dp4, tp2 dp2", 3), tmp_path / "old")
    spec = make_spec(
        "tp3 and pp2", 1, modules={("vision", "init_from"): str(tmp_path / "old")},
        optimizer={"kind": "sgd", "lr": 0.0}, checkpoint={"every": 1},
    )  # fmt: skip
    events = run(spec, tmp_path / "new")
    [loaded] = [e for e in events if isinstance(e, WeightsLoaded)]
    assert (loaded.missing, loaded.misfits, loaded.unused) == ((), (), ())
    old, new = (tensors(tmp_path / name) for name in ("old", "new"))
    assert loaded.num_loaded == sum(name.startswith("weights/vision.") for name in new)
    for name, tensor in new.items():
        assert torch.equal(tensor, old[name]) == name.startswith("weights/vision."), name


def test_a_damaged_checkpoint_of_another_run_keeps_its_name(tmp_path: Path) -> None:
    run(make_spec("one rank", 6), tmp_path / "old")
    newest, _ = names = all_checkpoints(tmp_path / "old")
    (newest / MARKER).write_text("{")
    start = {("vision", "init_from"): str(tmp_path / "old")}
    events = run(make_spec("one rank", 1, modules=start), tmp_path / "new")
    assert [e.checkpoint for e in events if isinstance(e, CheckpointPassedOver)] == [str(newest)]
    assert all_checkpoints(tmp_path / "old") == names


def test_a_partial_match_says_which_names_did_not_fit(tmp_path: Path) -> None:
    run(make_spec("one rank", 3), tmp_path / "old")
    start = {("vision", "init_from"): str(tmp_path / "old")}
    other = {**VISION, "layers": 3, "mlp": 48}
    spec = make_spec("one rank", 3, modules={**start, ("vision", "model"): other})
    # Known before a process starts; should the folder change in between, workers say it.
    assert {found.path[-1] for found in check(spec) if found.is_error} == {"layers", "mlp"}
    # Its marker has the checksum of every other file.
    for checkpoint in all_checkpoints(tmp_path / "old"):
        others = {path.name for path in checkpoint.iterdir()} - {MARKER}
        assert read_marker(checkpoint).files.keys() == others >= {TENSORS}
    with pytest.raises(RankError, match=r"does not fit: .*missing there: vision\.layers\.2"):
        run_ranks(run_on_rank, spec, tmp_path / "a", world_size=1)
    wide = make_spec("one rank", 3, modules={**start, ("vision", "model"): {**VISION, "mlp": 48}})
    with pytest.raises(RankError, match=r"does not fit: \d of another shape: vision\.layers\.0"):
        run_ranks(run_on_rank, wide, tmp_path / "a", world_size=1)
    start[("vision", "init_partial")] = True
    spec = make_spec("one rank", 3, modules={**start, ("vision", "model"): other})
    [loaded] = [e for e in run(spec, tmp_path / "b") if isinstance(e, WeightsLoaded)]
    assert all(name.startswith("vision.layers.2.") for name in loaded.missing)
    assert {name.split(" ")[0].rpartition(".mlp.")[0] for name in loaded.misfits} == {
        "vision.layers.0", "vision.layers.1",
    }  # fmt: skip


def test_of_many_names_that_do_not_fit_the_first_few_are_spelled_out() -> None:
    names, first = [f"n{number}" for number in range(10)], "n0, n1, n2, n3, n4, n5, n6, n7"
    assert differences(missing_there=names[:-2]) == f"8 missing there: {first}"
    assert differences(missing_there=names, there_only=["x"], of_another_shape=[]) == (
        f"10 missing there: {first} and 2 more; 1 there only: x"
    )


@pytest.mark.parametrize(
    "change", [pytest.param("unfreeze", marks=pytest.mark.faults), "sgd to adamw"]
)
def test_moments_that_were_never_saved_start_from_zero(change: str, tmp_path: Path) -> None:
    """Vision was frozen, or the optimizer had none: the module's updates count from 0, too."""
    frozen = {("vision", "frozen"): "except_projector"} if change == "unfreeze" else {}
    sgd = {} if frozen else {"optimizer": {"kind": "sgd", "lr": 5e-3, "clip": 1.0}}
    run(make_spec("colocated dp4", 3, modules=frozen, **sgd), tmp_path)
    events = run(make_spec("disjoint dp2, tp2", 6), tmp_path)
    [resumed] = [e for e in events if isinstance(e, RunResumed)]
    assert "optimizer state of vision: none saved -> zero" in resumed.changes
    everything = "optimizer state of language: none saved -> zero" in resumed.changes
    assert everything == (change == "sgd to adamw")
    marker = json.loads((all_checkpoints(tmp_path)[0] / "checkpoint.json").read_text())
    counts = {marker["updates"][name] for name in marker["updates"] if "projector" in name}
    assert counts == ({6} if frozen else {3})
    others = {n for name, n in marker["updates"].items() if name.startswith("vision.layers")}
    assert others == {3}


def test_a_thawed_module_is_updated_as_by_a_hand_written_adamw(tmp_path: Path) -> None:
    """Step 4 is the first update of vision, which was frozen, and the fourth of language."""
    frozen = run(make_spec("one rank", 3, modules={("vision", "frozen"): True}), tmp_path)
    rates = [event.lrs.keys() for event in frozen if isinstance(event, StepFinished)]
    assert rates == [{"language"}] * 3, "a rate of what no step moves would mean nothing"
    before = tensors(tmp_path)
    events = run(make_spec("one rank", 4), tmp_path)
    after = tensors(tmp_path)
    [record] = [event for event in events if isinstance(event, StepFinished)]
    checked = set()
    for kind, name in (key.split("/") for key in after):
        if kind != "exp_avg":
            continue
        module = name.partition(".")[0]
        count, lr = {"vision": 1, "language": 4}[module], record.lrs[module]
        mean, square = after[f"exp_avg/{name}"], after[f"exp_avg_sq/{name}"]
        old, new = before[f"weights/{name}"], after[f"weights/{name}"]
        mean, square = mean / (1 - 0.9**count), square / (1 - 0.95**count)
        decays = old.ndim > 1 and "embedding" not in name
        expected = old * (1 - lr * 0.1 * decays) - lr * mean / (square.sqrt() + 1e-8)
        assert torch.allclose(new, expected, rtol=1e-9, atol=1e-12), name
        checked.add(module)
    assert checked == {"vision", "language"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda marker: marker | {"files": None},
        lambda marker: marker | {"counts": []},
        lambda marker: marker | {"counts": marker["counts"] | {"step": 9}},
        lambda marker: marker | {"format": 0},
        lambda marker: [marker],
        lambda marker: {"crc32": marker["crc32"]},
    ],
)
def test_a_damaged_marker_is_recognised(damage: Any, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-00000003"
    unfinished = checkpoint.with_name("step-00000003.partial")
    unfinished.mkdir(parents=True)
    counts = {"step": 3, "samples": 24, "skipped": 0, "bad_samples": 0}
    content = {"format": 1, "counts": counts, "updates": {}, "plan": "", "spec": {}, "torch": ""}
    complete(unfinished, checkpoint, content | {"files": {}})
    assert read_marker(checkpoint).counts == counts
    marker = json.loads((checkpoint / "checkpoint.json").read_text())
    (checkpoint / "checkpoint.json").write_text(json.dumps(damage(marker)))
    with pytest.raises(DamagedCheckpoint):
        read_marker(checkpoint)


def save_apart(spec: Spec, folder: Path) -> list[Any]:
    """Every rank saves into a folder of its own, as on hosts without a shared one.

    One rank alone finds that a file has another size than what it wrote, as on a slow share.
    """
    if world_size(spec) == 1:
        files = CheckpointSaver._files

        def longer(saver: CheckpointSaver, where: Path) -> dict[str, tuple[int, int]]:
            return {name: (size + 1, crc) for name, (size, crc) in files(saver, where).items()}

        CheckpointSaver._files = longer  # type: ignore[method-assign]
    events: list[Any] = []
    with RankSession(Plan.of(spec)) as session:
        state, saver = start_run(session, folder / str(session.rank), events.append)
        with pytest.raises(CheckpointNotWritten, match=r"does not see .*one shared run folder"):
            train(session, events.append, Hooks(saver=saver), state)
    return events


@pytest.mark.parametrize("layout", ["disjoint dp2, tp2", "one rank"])
def test_hosts_without_a_shared_folder_save_nothing_and_leave_nothing(
    layout: str, tmp_path: Path
) -> None:
    spec = make_spec(layout, 3)
    run_ranks(save_apart, spec, tmp_path, world_size=world_size(spec))
    # A full disk needs the room for metrics, logs and the report.
    assert not [path for path in tmp_path.rglob("checkpoints/**/*") if path.is_file()]


def outcomes_with_a_bad_save(spec: Spec, folder: Path, bad: int) -> list[str]:
    """Return how saves ended, and if the run did so well; the disk is full at step `bad`."""
    write, events = saver_module.write_boxes, list[Any]()

    def full(unfinished: Path, *args: Any) -> None:
        if unfinished.name.startswith(folder_name(bad)):
            raise CheckpointError("no space left")
        write(unfinished, *args)

    saver_module.write_boxes = full
    with RankSession(Plan.of(spec)) as session, suppress(CheckpointNotWritten):
        state, saver = start_run(session, folder, events.append)
        train(session, events.append, Hooks(saver=saver), state)
    kinds = {CheckpointSaved: "saved", CheckpointFailed: "failed", RunFinished: "run ended"}
    return [kinds[type(event)] for event in events if type(event) in kinds]


def test_a_run_fails_with_its_last_save_and_not_with_an_earlier_one(tmp_path: Path) -> None:
    spec = make_spec("one rank", 3, checkpoint={"every": 1})
    [early] = run_ranks(outcomes_with_a_bad_save, spec, tmp_path / "a", 2, world_size=1)
    assert early == ["saved", "failed", "saved", "run ended"]
    [late] = run_ranks(outcomes_with_a_bad_save, spec, tmp_path / "b", 3, world_size=1)
    assert late == ["saved", "saved", "failed"]


def test_resuming_tells_which_settings_changed(tmp_path: Path) -> None:
    run(make_spec("one rank", 3), tmp_path)
    slower = {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.1, "clip": 1.0}
    events = run(make_spec("colocated dp4", 4, optimizer=slower), tmp_path)
    [resumed] = [e for e in events if isinstance(e, RunResumed)]
    assert "optimizer.lr: 0.005 -> 0.001" in resumed.changes
    assert "modules.vision.grid.dp: 1 -> 4" in resumed.changes


def test_a_checkpoint_holds_no_pickle_of_ours(tmp_path: Path) -> None:
    """A file whose pickle would run code is refused by `weights_only`, and nothing runs."""
    spec = make_spec("one rank", 3)
    run(spec, tmp_path)
    [checkpoint] = all_checkpoints(tmp_path)
    assert {f.name for f in checkpoint.iterdir()} == {
        "__0_0.distcp", "tensors.json", "checkpoint.json",
    }  # fmt: skip
    index = json.loads((checkpoint / "tensors.json").read_text())
    evil = io.BytesIO()
    torch.save(Evil(tmp_path / "ran"), evil)
    for entry in index.values():
        for chunk in entry["chunks"]:
            chunk[2:] = ["../step-00000003/evil", 0, len(evil.getvalue())]
    (checkpoint / "evil").write_bytes(evil.getvalue())
    write_index(checkpoint, index)
    with pytest.raises(RankError, match=r"(?i)weights.only"):
        run(spec, tmp_path)
    assert not (tmp_path / "ran").exists()


def write_index(checkpoint: Path, index: dict[str, Any]) -> None:
    """Give a checkpoint another index, and sums that say that all is as it was written."""
    (checkpoint / "tensors.json").write_text(json.dumps(index))
    marker = json.loads((checkpoint / "checkpoint.json").read_text())
    del marker["crc32"]
    marker["files"] = {
        f.name: [f.stat().st_size, crc_of(f, lambda: None)]
        for f in checkpoint.iterdir()
        if f.name != "checkpoint.json"
    }
    unfinished = checkpoint.with_name(f"{checkpoint.name}.partial")
    checkpoint.rename(unfinished)
    complete(unfinished, checkpoint, marker)


def read_own_folder(folder: Path, *, with_group: bool) -> str:
    """Write and read a tensor on this rank alone; the file of rank 1 is lost in between."""
    rank, where = dist.get_rank(), folder / str(dist.get_rank())
    own = [dist.new_group([r], backend="gloo") for r in range(dist.get_world_size())][rank]
    where.mkdir()
    values = torch.arange(3.0) + rank
    write_boxes(where, [Box("a", (3,), (0,), values, counted=True)], own, lambda: None)
    if rank == 1:
        next(where.glob("*.distcp")).unlink()
    found = Box("a", (3,), (0,), torch.zeros(3), counted=True)
    try:
        read_boxes(where, [found], own if with_group else None, lambda: None)
    except CheckpointError as error:
        return str(error)
    return "read" if torch.equal(found.tensor, values) else "not read"


@pytest.mark.parametrize("with_group", [True, False])
def test_only_the_ranks_of_a_group_write_and_read_together(
    with_group: bool, tmp_path: Path
) -> None:
    """Each of two ranks is a group, or has none: what one meets is no error of the other."""
    function = partial(read_own_folder, tmp_path, with_group=with_group)
    first, second = run_ranks(function, world_size=2)
    assert first == "read"
    assert "__0_0.distcp" in second


class Evil:
    """Its pickle makes a folder when loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))
