"""Kept rows: a step that reads them equals the one-rank run, and so does one that writes them."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.proof import failures, verdicts_as_it_is
from tests.support.running_ranks import running_ranks
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, steps_of
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.base import Grid
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import Event, ListenerFailed, StepFinished
from mimo_launch.train.loop import train
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.proof import verify_training_on
from mimo_launch.verify.shrink import short_run, shrink


def made(
    vision: dict[str, Any] | None = None, language: dict[str, Any] | None = None, **rest: Any
) -> Spec:
    """A frozen encoder beside a language model that trains."""
    modules = {
        "vision": box(**({"frozen": True} | (vision or {}))),
        "language": box(**(language or {})),
    }
    return spec(modules, **({"microbatches": 2, "mbs": 2} | rest))


def keeping(small: Spec, folder: Path) -> Spec:
    vision = small.modules["vision"].model_validate(
        small.modules["vision"].model_dump() | {"cache": {"folder": str(folder)}}
    )
    return small.replace(modules={**small.modules, "vision": vision})


def files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file())


LAYOUTS: dict[str, Callable[[], Spec]] = {
    "one rank each": made,
    "tp 2 and dp 2, sequence parallel, cp 2 in language": lambda: made(
        {"tp": 2, "dp": 2, "sequence_parallel": True}, {"cp": 2, "tp": 2}
    ),
    "pp 2, dp 2, fully sharded": lambda: made(
        {"pp": 2, "dp": 2, "sharding": "full", "model": {"layers": 2}}, {"dp": 2}
    ),
    "deepstack, pp 2, a class token": lambda: made(
        {"pp": 2, "model": {"layers": 3, "deepstack": [0, 1], "class_token": True}},
        {"tp": 2, "model": {"layers": 3}},
    ),
    "cp 2 and tp 2 on the ranks of language": lambda: made(
        {"cp": 2, "tp": 2, "first": 0}, {"pp": 2, "dp": 2, "first": 0}
    ),
}

# Kinds of encoders besides a ViT, a stage between others, pictures without rows, packed documents.
MORE: dict[str, Callable[[], Spec]] = {
    "aut, cp 2 and tp 2": lambda: made({"cp": 2, "tp": 2, "model": {"kind": "aut"}}),
    "audio, pp 2, dp 2": lambda: made({"pp": 2, "dp": 2, "model": {"kind": "audio"}}, {"dp": 2}),
    "pp 3, sequence parallel": lambda: made(
        {"pp": 3, "tp": 2, "sequence_parallel": True, "model": {"layers": 3}}, {"pp": 2}
    ),
    "dp 4 to dp 2, hybrid shards, packed": lambda: made(
        {"dp": 4, "sharding": "full", "shard_over": 2}, {"dp": 2}, packing=True
    ),
}


@pytest.mark.parametrize(
    "layout", [*LAYOUTS, *(pytest.param(each, marks=pytest.mark.sweep) for each in MORE)]
)
def test_steps_that_write_and_read_rows_equal_the_one_rank_run(layout: str, tmp_path: Path) -> None:
    made = keeping(shrink((LAYOUTS | MORE)[layout]()), tmp_path)
    assert failures(verdicts_as_it_is(made)) == []
    kept = {each: each.read_bytes() for each in files(tmp_path)}
    assert kept
    assert failures(verdicts_as_it_is(made)) == []
    assert {each: each.read_bytes() for each in files(tmp_path)} == kept
    # Every row is read: other rows show.
    for path in files(tmp_path):
        values = torch.frombuffer(bytearray(path.read_bytes()[:-32]), dtype=torch.float64) + 1
        body = values.numpy().tobytes()
        path.write_bytes(body + sha256(body).digest())
    assert any("loss" in each for each in failures(verdicts_as_it_is(made)))


def events_of(made: Spec) -> list[Event]:
    """Run the steps on this rank; return what it tells."""
    events: list[Event] = []
    with RankSession(Plan.of(made), randomise=True) as session:
        train(session, events.append)
    return events


def told(made: Spec) -> tuple[list[dict[str, int] | None], list[float], list[str]]:
    """Return the images that each step read, its loss, and the warnings, of rank 0.

    Work that kept rows save does not count as done.
    """
    ranks = running_ranks(world_size(made)).run(events_of, made, timeout_s=60)
    steps = [each for each in ranks[0] if isinstance(each, StepFinished)]
    for each in steps:
        assert (each.usage.tflop["vision"] > 0) is not any((each.cached or {}).values())
    warnings = [each.reason for each in ranks[0] if isinstance(each, ListenerFailed)]
    return [each.cached for each in steps], [each.loss for each in steps], warnings


def test_a_warm_run_repeats_the_losses_of_a_cold_one_and_a_damaged_file_is_made_again(
    tmp_path: Path,
) -> None:
    small = keeping(shrink(made({"dp": 2, "sharding": "full"}, {"dp": 2})), tmp_path)
    cold, right, _ = told(small)
    assert cold == [{"vision": 0}] * len(right)
    warm, losses, warnings = told(small)
    assert all(each and each["vision"] > 0 for each in warm)
    assert (losses, warnings) == (right, [])
    kept = {each: each.read_bytes() for each in files(tmp_path)}
    # One replica lacks rows; the other one computes with it.
    path = min(kept)
    path.write_bytes(kept[path][:-1])
    damaged, losses, warnings = told(small)
    assert {"vision": 0} in damaged
    assert (losses, warnings) == (right, ["a file is damaged"])
    assert {each: each.read_bytes() for each in files(tmp_path)} == kept


def test_other_layouts_read_the_same_files_and_other_weights_do_not(tmp_path: Path) -> None:
    first = keeping(shrink(made({"tp": 2, "dp": 2, "sharding": "full"}, {"dp": 2})), tmp_path)
    told(first)
    kept = files(tmp_path)
    vision = first.modules["vision"]
    for grid in ({"tp": 2, "dp": 2}, {"tp": 2, "pp": 2}, {"cp": 2, "tp": 2}, {"dp": 4}):
        other = vision.replace(grid=Grid(**grid), sharding="optimizer")
        steps, _, _ = told(first.replace(modules={**first.modules, "vision": other}))
        assert all(each and each["vision"] > 0 for each in steps), grid
    assert files(tmp_path) == kept
    told(first.replace(train=first.train.replace(seed=5)))
    assert len(list(tmp_path.iterdir())) == 2


def of_model(small: Spec, **keys: Any) -> Spec:
    vision = small.modules["vision"]
    changed = vision.replace(model=vision.model.replace(**keys))
    return small.replace(modules={**small.modules, "vision": changed})


def computing_in(small: Spec, precision: str) -> Spec:
    return small.replace(train=small.train.replace(precision=precision))


# Settings that change rows, but no weight.
OTHER_ROWS: dict[str, Callable[[Spec], Spec]] = {
    "norms": lambda small: of_model(small, norm_eps=0.1),
    "activation": lambda small: of_model(small, activation="quick_gelu"),
    "numbers": lambda small: computing_in(small, "bf16"),
}


@pytest.mark.parametrize("other", OTHER_ROWS)
def test_rows_of_other_settings_are_made_again(other: str, tmp_path: Path) -> None:
    """A run beside rows of another one has the losses of a run without any."""
    small = computing_in(shrink(made()), "fp32")
    told(keeping(small, tmp_path / "used"))
    changed = OTHER_ROWS[other](small)
    found = told(keeping(changed, tmp_path / "used"))
    assert found == told(keeping(changed, tmp_path / "empty"))
    assert found[0] == [{"vision": 0}] * len(found[0])
    assert found[1] != told(keeping(small, tmp_path / "used"))[1]


def read_without(made: Spec) -> bool:
    """Read a step as a bench does; return whether its rows are read."""
    dataset = build_dataset(made)
    with (
        RankSession(Plan.of(made), randomise=True) as session,
        StepReader(session, dataset, RunState(), lambda event: None, caches=False) as reader,
    ):
        (ids, *_) = steps_of(global_order(made, dataset), 1)
        inputs = reader.read("train", ids, 0)
        session.step(inputs)
        return bool(inputs.from_cache)


def test_a_bench_neither_reads_nor_keeps_rows(tmp_path: Path) -> None:
    small = keeping(shrink(made()), tmp_path)
    assert not any(running_ranks(world_size(small)).run(read_without, small))
    assert files(tmp_path) == []


def test_a_run_that_resumes_equals_the_one_rank_run(tmp_path: Path) -> None:
    wanted = made({"tp": 2, "dp": 2}, {"pp": 2, "dp": 2})
    short = keeping(short_run(wanted, shrink(wanted)), tmp_path)
    for _ in ("cold", "warm"):
        ranks = running_ranks(world_size(short))
        assert failures(verify_training_on(ranks, running_ranks(1), short)) == []
