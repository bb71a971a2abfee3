"""Frozen ranges of layers: on every layout the others train as on one rank, and these stay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import make_spec, numbers, run, run_anew
from tests.support.planted_experts import mixture
from tests.support.planted_training import with_settings
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, hybrid, spec
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.mailbox import Address
from mimo_launch.schedule.actions import Kind
from mimo_launch.spec.module import ModuleSpec
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import StepFinished
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession


def frozen(layers: str, of: int = 3, /, **rest: Any) -> dict[str, Any]:
    """A box in which these of `of` layers are frozen."""
    model = {"layers": of, **rest.pop("model", {})}
    return box(model=model, frozen={"layers": layers}, **rest)


def made(
    vision: dict[str, Any] | None = None, language: dict[str, Any] | None = None, **rest: Any
) -> Spec:
    modules = {"vision": vision or box(frozen=True), "language": language or frozen("0-1")}
    return spec(modules, **({"microbatches": 2, "mbs": 2} | rest))


LAYOUTS: dict[str, Callable[[], Spec]] = {
    "the lowest layers": made,
    "the lowest layers, under trained vision": lambda: made(frozen("0-1")),
    "a middle layer of both": lambda: made(frozen("1"), frozen("1", tp=2)),
    "the highest layers": lambda: made(frozen("1-2"), frozen("2", tp=2, sequence_parallel=True)),
    "all layers of language": lambda: made(frozen("0-2"), frozen("0-2")),
    "stages with nothing to train": lambda: made(
        language=frozen("0-2", 4, pp=4, model={"tied": True}), mbs=1
    ),
    "a stage in part, tied": lambda: made(
        language=frozen("0-2", 4, pp=2, model={"tied": True}, sharding="full")
    ),
    "interleaved chunks": lambda: made(
        box(dp=2, frozen=True),
        frozen("0-1", 4, pp=2, model={"tied": True}),
        kind="interleaved",
        virtual_stages=2,
    ),
    "a pipeline of vision": lambda: made(frozen("0-1", 4, pp=2, dp=2), frozen("1", pp=2, dp=2)),
    "units of both, dp 2": lambda: made(frozen("0-1", dp=2), frozen("0-1", dp=2, cp=2)),
    "fully sharded, recomputed": lambda: made(
        frozen("0-1", dp=2, sharding="full", recompute="full"),
        frozen("1", dp=2, sharding="full", recompute="full"),
    ),
    "experts": lambda: made(
        box(dp=4, frozen=True),
        frozen(
            "0-1",
            tp=2,
            dp=2,
            experts={"ep": 2},
            model=mixture(width=8, bias_update_rate=0.1, every=1),
        ),
    ),
    "experts between trained layers": lambda: made(
        box(dp=2),
        frozen("1", dp=2, experts={"ep": 2}, model=mixture(width=8, bias_update_rate=0.1, every=1)),
    ),
    "a hybrid": lambda: made(
        language=frozen("0-1", 4, tp=2, model=hybrid({"tp": 2}, "M*G-")), seq=16
    ),
    "further tokens": lambda: made(language=frozen("0-1", model={"mtp": {"depth": 1}})),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_other_layers_get_the_gradients_of_one_rank(layout: str) -> None:
    found = verdicts(LAYOUTS[layout]())
    assert not failures(found)
    assert sum(each.tensors for each in found if each.what == "gradients") > 0


def test_only_the_other_layers_move() -> None:
    assert not failures(training_verdicts(made(frozen("1", tp=2), frozen("0-1", tp=2))))


def _replaced(change: Callable[[ModuleSpec, int], bool]) -> Callable[[], None]:
    """Return a plant: `change` says whether a layer trains."""

    def plant() -> None:
        right = ModuleSpec.layer_trains
        ModuleSpec.layer_trains = (  # type: ignore[method-assign]
            lambda self, number: change(self, number) ^ right(self, number)
        )

    return plant


def embedding_trains() -> None:
    """What comes before the layers trains with what comes after them."""
    ModelKind.names_before = lambda self, ends: frozenset()  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "a frozen layer moves": _replaced(lambda module, number: number == 1),
    "a trained layer stays": _replaced(lambda module, number: number == 2),
    "the embedding moves": embedding_trains,
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_rejected(name: str) -> None:
    assert failures(verdicts(made(), prepare=BUGS[name])), f"{name} passes"


def stages_that_run_backward(spec: Spec) -> set[int | None]:
    """Return the stages of language with backwards in the programs of a step."""
    actions = [action for program in Plan.of(spec).training for slot in program for action in slot]
    backwards = [each for each in actions if each.kind is Kind.BACKWARD]
    return {each.stage for each in backwards if each.module == "language"}


def test_no_backward_runs_below_the_lowest_trained_layer() -> None:
    language = frozen("0-2", 6, pp=3, first=1)
    assert stages_that_run_backward(made(language=language)) == {1, 2}
    # Unless something trains that language reads.
    assert stages_that_run_backward(made(box(), language)) == {0, 1, 2}


def ranged(layout: str, steps: int, layers: str, **sections: Any) -> Spec:
    """A run of digits in which these layers of both modules are frozen."""
    kept = {(name, "frozen"): {"layers": layers} for name in ("vision", "language")}
    return make_spec(layout, steps, modules=kept, **sections)


def test_a_run_goes_on_on_another_layout_and_with_another_range(tmp_path: Path) -> None:
    alone = numbers(run(ranged("one rank", 5, "0"), tmp_path / "alone"))
    run(ranged("colocated dp4, tp2 dp2", 3, "0"), tmp_path / "run")
    went_on = numbers(run_anew(ranged("pp2", 5, "0"), tmp_path / "run"))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(alone[step], rel=1e-9)
    further = run_anew(ranged("one rank", 7, "1"), tmp_path / "run")
    assert [e.step for e in further if isinstance(e, StepFinished)] == [6, 7]


def test_training_is_proved_where_the_last_stage_has_nothing_to_train() -> None:
    """A gradient of another rank is spoilt, to see a step skipped."""
    adapter = {"kind": "lora", "rank": 2, "targets": ["attention"]}
    vision = box(0, pp=2, model={"layers": 2}, adapter=adapter, frozen={"layers": "1"})
    made = spec({"vision": vision, "language": box(2)}, microbatches=2)
    assert not failures(training_verdicts(with_settings(made)))


def gradients_of_rows(made: Spec) -> list[bool]:
    """Return whether the rows of vision have a gradient after a step, by microbatch."""
    dataset = build_dataset(made)
    inputs = step_inputs(dataset, "train", global_order(made, dataset).take(0), 0)
    with RankSession(Plan.of(made)) as session:
        session.step(inputs).read()
        [bridge] = session.executor.bridges.values()
        return [bridge.received(number).grad is not None for number in range(2)]


@pytest.mark.parametrize("language", [box(), frozen("0-1")], ids=["trained", "in part"])
def test_no_gradient_is_computed_for_the_rows_of_frozen_vision(language: dict[str, Any]) -> None:
    """Through frozen layers it would cost a backward, and what that keeps."""
    made_ = made(language=language)
    assert run_on_running_ranks(gradients_of_rows, made_, world_size=1) == [[False, False]]


def activations_with_gradients(made: Spec) -> list[bool]:
    """Return whether what a step receives from the stage before needs a gradient, each time."""
    dataset, found = build_dataset(made), list[bool]()
    inputs = step_inputs(dataset, "train", global_order(made, dataset).take(0), 0)
    with RankSession(Plan.of(made)) as session:
        held = session.executor.mail.inputs
        put = held.put

        def noted(at: Address, tensor: Tensor) -> None:
            found.extend([tensor.requires_grad] if at.stage else [])
            put(at, tensor)

        held.put = noted  # type: ignore[method-assign]
        session.step(inputs).read()
    return found


def test_no_gradient_is_computed_for_what_frozen_stages_made() -> None:
    """Of two microbatches. Behind a layer that trains, every stage sends gradients back."""
    some = made(language=frozen("1-2", 4, pp=4), mbs=1)
    none = made(language=frozen("0-2", 4, pp=4), mbs=1)
    found = [
        run_on_running_ranks(activations_with_gradients, each, world_size=4)
        for each in (none, some)
    ]
    assert found == [
        [[], [False] * 2, [False] * 2, [False] * 2],
        [[], [True] * 2, [True] * 2, [True] * 2],
    ]
