"""Non-finite numbers: where they came from, when they stop a run, and gradients that are zero."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.poison import POISONED_STEP, PoisonedImages, poison_backward, poison_shard
from tests.support.specs import box, spec

from mimo_launch.checkpoint.folder import all_checkpoints
from mimo_launch.checkpoint.loading import start_run
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import GlobalOrder
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layers.parameter_segments import local_segments
from mimo_launch.layout.layout import build_layout, world_size
from mimo_launch.layout.step_data import StepData
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train import loop, prefetch
from mimo_launch.train.events import CheckpointSaved, NonFinite, RunFinished, StepFinished
from mimo_launch.train.loop import Hooks, train
from mimo_launch.train.non_finite import NonFiniteRun, NoUpdate
from mimo_launch.train.rank_session import RankSession

Arm = Callable[[RankSession], None]
ON = "to resume there, delete later ones"
STEPS = {"steps": 3, "precision": "fp64"}


def disjoint(**sections: Any) -> Spec:
    """Vision dp 2 on ranks 0-1, language dp 2 pp 2 on ranks 2-5, two microbatches of two."""
    modules = {"vision": box(0, dp=2), "language": box(2, dp=2, pp=2)}
    return spec(modules, **{"microbatches": 2, "mbs": 2, "train": STEPS, **sections})


def colocated(**sections: Any) -> Spec:
    """Vision dp 4 on the ranks of language tp 2 dp 2, in two groups."""
    modules = {"vision": box(0, dp=4), "language": box(0, tp=2, dp=2, model={"qk_norm": True})}
    settings = {"microbatches": 2, "encoder_microbatches": 1, "mbs": 2, "train": STEPS}
    return spec(modules, **{**settings, **sections})


def tensor_parallel(**sections: Any) -> Spec:
    """Vision tp 2 in front of language tp 2: no replicas, so nothing is summed over dp."""
    modules = {"vision": box(0, tp=2), "language": box(2, tp=2, model={"qk_norm": True})}
    return spec(modules, **{"microbatches": 2, "mbs": 2, "train": STEPS, **sections})


def one_replica() -> Spec:
    """Vision on rank 0, language pp 2 on ranks 1-2."""
    modules = {"vision": box(0), "language": box(1, pp=2)}
    return spec(modules, microbatches=2, mbs=2, train=STEPS)


def fully_sharded() -> Spec:
    """Vision dp 2 before language dp 2, weights gathered layer by layer."""
    full = {"sharding": "full"}
    modules = {"vision": box(0, dp=2, **full), "language": box(2, dp=2, **full)}
    return spec(modules, microbatches=2, mbs=2, train=STEPS)


def copies(over: int) -> Spec:
    """Vision dp 4, of which one or two replicas hold a copy, on the ranks of language dp 4."""
    vision = box(0, dp=4, shard_over=over, sharding="full" if over > 1 else "optimizer")
    return spec({"vision": vision, "language": box(0, dp=4)}, microbatches=2, mbs=2, train=STEPS)


def ids_of(made: Spec, step: int) -> tuple[int, ...]:
    order = GlobalOrder(build_dataset(made).num_samples("train"), made.batch.global_, 0)
    return order.ids(step)


def samples_of(made: Spec, module: str, replica: int) -> tuple[int, ...]:
    """Ids of the samples of one replica in the poisoned step, in the order of the step."""
    layout, ids = build_layout(made), ids_of(made, POISONED_STEP)
    found = layout[module]
    if found.is_language:
        groups = [layout.samples.language(replica, m) for m in range(layout.samples.microbatches)]
    else:
        num = layout.samples.microbatches // found.group_size
        dp = found.grid.size("dp")
        groups = [
            layout.samples.encoder(replica, dp, group, found.group_size) for group in range(num)
        ]
    return tuple(ids[s] for s in sorted(s for group in groups for s in group))


def faults(made: Spec, arm: Arm | None, poisoned_sample: int | None) -> list[NonFinite]:
    """Train and return what this rank was told of numbers that are not finite."""
    if poisoned_sample is not None:
        loop.build_dataset = lambda made: PoisonedImages(build_dataset(made), {poisoned_sample})
    events: list[Any] = []
    with RankSession(Plan.of(made)) as session:
        if arm is not None:
            arm(session)
        train(session, events.append)
    skipped = [e.step for e in events if isinstance(e, StepFinished) and e.skipped]
    assert skipped == [POISONED_STEP + 1]
    return [e for e in events if isinstance(e, NonFinite)]


def the_fault(made: Spec, arm: Arm | None, poisoned_sample: int | None = None) -> NonFinite:
    """Return the one fault of the run, on which all ranks agree."""
    results = run_ranks(faults, made, arm, poisoned_sample, world_size=world_size(made))
    assert all(found == results[0] for found in results)
    [fault] = results[0]
    assert fault.step == POISONED_STEP + 1
    return fault


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(("build", "position"), [(disjoint, 6), (colocated, 1)])
def test_a_bad_loss_names_the_microbatch_it_was_computed_on(
    build: Callable[[], Spec], position: int
) -> None:
    """A NaN among the pixels of one sample: of 8 samples, 4 per replica, 2 per microbatch."""
    made = build()
    layout, ids = build_layout(made), ids_of(made, POISONED_STEP)
    fault = the_fault(made, None, ids[position])
    replica, microbatch, _ = layout.samples.locate(position)
    last = layout.language.pp_index(len(layout.language.stages) - 1)
    assert (fault.what, fault.module) == ("loss", "language")
    assert fault.rank == layout.language.grid.rank_at(dp=replica, pp=last)
    assert fault.samples == tuple(ids[s] for s in layout.samples.language(replica, microbatch))


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(
    ("build", "module", "stage", "rank", "replica"),
    [
        (disjoint, "language", 1, 5, 1),  # The last stage: its gradient spreads to all others.
        (disjoint, "language", 0, 3, 1),
        (disjoint, "vision", 0, 1, 1),
        (colocated, "vision", 0, 3, 3),
        (fully_sharded, "vision", 0, 1, 1),
        (lambda: copies(1), "vision", 0, 3, 3),  # Copies are summed, shards are not.
        (lambda: copies(2), "vision", 0, 3, 3),
        (one_replica, "language", 1, 2, 0),  # FSDP has nothing to sum.
    ],
)
def test_a_bad_gradient_names_the_rank_where_it_arose(
    build: Callable[[], Spec], module: str, stage: int, rank: int, replica: int
) -> None:
    """The loss is finite; FSDP's sum carries the NaN to every replica of the module."""
    made = build()
    fault = the_fault(made, lambda session: poison_backward(session, module, stage, rank))
    assert (fault.what, fault.module, fault.rank) == ("gradient", module, rank)
    assert fault.samples == samples_of(made, module, replica)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(
    ("build", "module", "rank", "tp_grad"),
    [
        (disjoint, "vision", 1, "complete"),
        (colocated, "language", 2, "sharded"),
        (colocated, "language", 3, "partial"),  # Summed over tp, which reaches rank 2.
        (tensor_parallel, "language", 3, "partial"),
    ],
)
def test_a_bad_shard_names_its_rank(
    build: Callable[[], Spec], module: str, rank: int, tp_grad: str
) -> None:
    """Every rank's own gradient is finite, one rank's part of the sum is not: any sample counts."""
    made = build()
    fault = the_fault(made, lambda session: poison_shard(session, module, rank, tp_grad=tp_grad))
    assert (fault.what, fault.module, fault.rank) == ("gradient", module, rank)
    assert fault.samples == ids_of(made, POISONED_STEP)


def two_faults(made: Spec) -> list[tuple[int, str]]:
    events: list[Any] = []
    with RankSession(Plan.of(made)) as session:
        poison_backward(session, "language", 1, 5, at=0)
        poison_backward(session, "vision", 0, 1, at=1)
        train(session, events.append)
    return [(event.rank, event.module) for event in events if isinstance(event, NonFinite)]


@pytest.mark.usefixtures("late")
def test_a_bad_step_is_forgotten_by_the_next() -> None:
    """Else the flags of language, which comes first, would be blamed again."""
    found = run_ranks(two_faults, disjoint(), world_size=6)
    assert found == [[(5, "language"), (1, "vision")]] * 6


def ending(made: Spec, change: Callable[[], None]) -> tuple[list[Any], str, bool]:
    """Train after `change`; return the steps and faults, and how the run failed on this rank."""
    change()
    events: list[Any] = []
    with RankSession(Plan.of(made)) as session:
        try:
            train(session, events.append)
        except (NonFiniteRun, NoUpdate) as error:
            return events, f"{type(error).__name__}: {error}", error.restartable
    return events, "", True


def poison_steps(steps: set[int], made: Spec) -> Callable[[], None]:
    """Return what makes the images of the samples of these steps NaN."""
    ids = {sample for step in steps for sample in ids_of(made, step)}

    def change() -> None:
        loop.build_dataset = lambda made: PoisonedImages(build_dataset(made), ids)

    return change


def short(steps: int, max_skipped: int, **sections: Any) -> Spec:
    """Vision dp 2 in front of language dp 2; no sample is met twice."""
    train = {"steps": steps, "max_skipped": max_skipped, "precision": "fp64"}
    return spec({"vision": box(0, dp=2), "language": box(2, dp=2)}, train=train, **sections)


@pytest.mark.usefixtures("late")
def test_bad_steps_in_a_row_end_the_run_on_all_ranks() -> None:
    """Steps 2, 4 and 6 are bad: two with a good one between are not too many.

    Step 5 has no label, so it is neither good nor bad.
    """
    made = short(8, 2)
    poison = poison_steps({1, 3, 5}, made)
    results = run_ranks(ending, made, lambda: (poison(), no_labels(4)), world_size=4)
    for events, error, restartable in results:
        last = [event for event in events if isinstance(event, NonFinite)][-1]
        assert [e.skipped for e in events if isinstance(e, StepFinished)] == [
            False, True, False, True, True, True,
        ]  # fmt: skip
        assert not restartable
        assert error.startswith("NonFiniteRun: 2 steps in a row were skipped")
        assert f"step 6, loss of language on rank 2, samples {last.samples[0]}" in error
        assert "optimizer.lr" in error
        assert error == results[0][1]


@pytest.mark.usefixtures("late")
def test_a_run_whose_every_step_was_bad_does_not_end_well() -> None:
    made = short(2, 10)
    for events, error, _ in run_ranks(ending, made, poison_steps({0, 1}, made), world_size=4):
        assert error.startswith("NonFiniteRun: all 2 steps were skipped")
        assert not any(isinstance(event, RunFinished) for event in events)


def spoil_weights(made: Spec, folder: Path, *names: str) -> tuple[str, list[Any]]:
    """Make weights NaN on the ranks that hold them, before step 4 is saved; return the end."""
    update, events = RankSession.update, list[Any]()

    def then_spoil(session: RankSession) -> None:
        update(session)
        step = session.ending.step.data.step
        for part in local_segments(session.declared("language"), lambda weight: weight.detach()):
            if step == 3 and part.name in names:
                part.local.view(-1)[-1] = float("nan")

    RankSession.update = then_spoil  # type: ignore[method-assign]
    with RankSession(Plan.of(made)) as session:
        state, saver = start_run(session, folder, events.append)
        with pytest.raises(NonFiniteRun) as end:
            train(session, events.append, Hooks(saver=saver), state)
    return str(end.value), [event for event in events if isinstance(event, CheckpointSaved)]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(("expert", "rank"), [(1, 0), (2, 1)])
def test_a_weight_that_is_not_finite_is_named_with_its_rank_and_the_last_sound_checkpoint(
    expert: int, rank: int, tmp_path: Path
) -> None:
    """Parallelism: dp 2, ep 2. `keep: 1` would leave the checkpoint that cannot be used."""
    moe = {"experts": 4, "top_k": 4, "width": 8}
    language = box(0, dp=2, model={"layers": 2, "moe": moe}, experts={"ep": 2})
    steps = {"steps": 9, "max_skipped": 2, "precision": "fp64"}
    made = spec({"language": language}, train=steps, checkpoint={"every": 2, "keep": 1})
    name = f"language.layers.1.mlp.experts.{expert}.up.weight"
    [(words, saves), (same, _)] = run_ranks(spoil_weights, made, tmp_path, name, world_size=2)
    assert words == same
    assert f"\nnot finite: {name} (rank {rank})\n" in words
    sound = tmp_path / "checkpoints" / "step-00000002"
    assert words.endswith(f"newest checkpoint with finite weights: {sound}; {ON}")
    assert [(save.step, save.not_finite) for save in saves] == [(2, ()), (4, (name,))]
    assert [path.name[-1] for path in all_checkpoints(tmp_path)] == ["4", "2"]


@pytest.mark.usefixtures("late")
def test_a_save_names_the_weights_that_are_not_finite_on_any_rank(tmp_path: Path) -> None:
    """Parallelism: dp 2, ep 2. Each rank holds one of both experts."""
    moe = {"experts": 2, "top_k": 2, "width": 8}
    language = box(0, dp=2, model={"layers": 1, "moe": moe}, experts={"ep": 2})
    steps = {"steps": 9, "max_skipped": 2, "precision": "fp64"}
    made = spec({"language": language}, train=steps, checkpoint={"every": 2})
    names = tuple(f"language.layers.0.mlp.experts.{expert}.up.weight" for expert in (0, 1))
    for _, saves in run_ranks(spoil_weights, made, tmp_path, *names, world_size=2):
        assert [(save.step, save.not_finite) for save in saves] == [(2, ()), (4, names)]


def no_labels(*steps: int) -> None:
    """Make every sample of these steps, by default of all, one without a label."""
    correct = prefetch.step_inputs

    def without(*args: Any) -> Any:
        inputs = correct(*args)
        if steps and inputs.data.step not in steps:
            return inputs
        samples = tuple(replace(sample, num_labels=0) for sample in inputs.data.samples)
        return replace(inputs, data=StepData(inputs.data.step, samples))

    prefetch.step_inputs = without


@pytest.mark.usefixtures("late")
def test_steps_without_labels_are_no_bad_numbers_yet_no_training_either() -> None:
    for events, error, restartable in run_ranks(ending, short(3, 2), no_labels, world_size=4):
        assert [e.skipped for e in events if isinstance(e, StepFinished)] == [True] * 3
        assert not any(isinstance(event, NonFinite) for event in events)
        assert error.startswith("NoUpdate: all 3 steps were skipped")
        assert not restartable


def zeros(made: Spec) -> dict[str, int] | None:
    """Train one step and return what was counted."""
    events: list[Any] = []
    with RankSession(Plan.of(made)) as session:
        train(session, events.append)
    [found] = [event.zero_grads for event in events if isinstance(event, StepFinished)]
    return found


SIZES = {"hidden": 16, "layers": 2, "heads": 2, "mlp": 8}
# Without rotation key biases have rounding for gradients, some of which may well be zero.
ENCODER = {**SIZES, "positions": "rope2d"}
DECODER = {**SIZES, "vocab": 50, "vocab_multiple": 8}


@pytest.mark.parametrize(
    ("vision", "language", "text_only"),
    [
        (box(0, dp=2), box(0, tp=2), 0.0),
        (box(0, tp=2, sequence_parallel=True), box(2, pp=2, model={"tied": True}), 1.0),
        (box(0, frozen=True), box(1, dp=2, sharding="full"), 1.0),
    ],
    ids=["colocated tp", "pp tied", "frozen"],
)
def test_zero_gradients_are_counted_once_on_every_layout(
    vision: dict[str, Any], language: dict[str, Any], text_only: float
) -> None:
    """No gradient: embeddings of padding, an encoder without images. A frozen one has none."""
    train = {"steps": 1, "precision": "fp64", "count_zero_grads": True}

    def build(vision: dict[str, Any], language: dict[str, Any]) -> Spec:
        model = {**DECODER, **language.get("model", {})}
        modules = {"vision": {**vision, "model": ENCODER}, "language": {**language, "model": model}}
        mbs = 4 // language["grid"]["dp"]
        return spec(modules, mbs=mbs, seq=24, text_only=text_only, train=train)

    alone = dict.fromkeys(("tp", "cp", "dp", "pp"), 1)
    [expected] = run_ranks(
        zeros,
        build({**vision, "ranks": "0", "grid": alone}, {**language, "ranks": "0", "grid": alone}),
        world_size=1,
    )
    made = build(vision, language)
    assert run_ranks(zeros, made, world_size=world_size(made)) == [expected] * world_size(made)
    padding = 56 - 50
    assert expected["language"] >= 16 * padding
    assert (expected["vision"] > 1000) == (text_only == 1 and "frozen" not in vision)
