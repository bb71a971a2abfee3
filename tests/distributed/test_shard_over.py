"""Weights sharded over a part of dp: gradients, updates and checkpoints of one rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import make_spec, numbers, run, run_anew
from tests.support.planted_experts import mixture
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.specs import box, spec
from torch.distributed.fsdp import FSDPModule

from mimo_launch.estimate.estimates import Estimator
from mimo_launch.layers import parameter_segments
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec

FULL = {"sharding": "full"}


def made(
    vision: dict[str, Any] | None = None, language: dict[str, Any] | None = None, **rest: Any
) -> Spec:
    """Vision and language of four replicas."""
    modules = {
        "vision": box(**({"dp": 4, "shard_over": 2} | (vision or {}))),
        "language": box(**({"dp": 4, "shard_over": 2} | (language or {}))),
    }
    return spec(modules, **({"microbatches": 2, "mbs": 1} | rest))


LAYOUTS: dict[str, Callable[[], Spec]] = {
    "optimizer": made,
    "full": lambda: made(FULL, FULL),
    "copies of whole weights": lambda: made({"shard_over": 1} | FULL, {"shard_over": 1}),
    "tp 2": lambda: made({"tp": 2, "dp": 4}, {"tp": 2, "dp": 4, "sequence_parallel": True} | FULL),
    "cp 2": lambda: made({"cp": 2, "dp": 4} | FULL, {"cp": 2, "dp": 4}),
    "pp 2, tied": lambda: made({"dp": 4}, {"pp": 2, "dp": 4, "model": {"tied": True}} | FULL),
    "dp outermost": lambda: made(
        {"dp": 4}, {"dp": 4, "tp": 2, "order": ("dp", "tp", "cp", "pp"), "shard_over": 2}
    ),
    "experts": lambda: made({}, {"experts": {"ep": 2}, "model": mixture(width=8)} | FULL),
    "adapter": lambda: made({}, {"adapter": {"rank": 2}} | FULL),
    "recomputed, trained projector": lambda: made(
        {"frozen": "except_projector"}, {"recompute": "full"} | FULL
    ),
    "Muon": lambda: made(FULL, FULL, optimizer={"kind": "muon", "lr": 0.01}),
    "disjoint, other copies": lambda: made(
        {"dp": 2, "shard_over": 1}, {"first": 2, "dp": 4, "shard_over": 2} | FULL
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_compute_the_gradients_of_one_rank(layout: str) -> None:
    assert not failures(verdicts(LAYOUTS[layout]()))


def copies_not_summed() -> None:
    """Each copy follows the gradients of its own samples."""
    correct = FSDPModule.set_requires_all_reduce

    def never(self: Any, requires: bool, **more: Any) -> None:
        correct(self, False, **more)

    FSDPModule.set_requires_all_reduce = never  # type: ignore[method-assign]


def norm_of_every_copy() -> None:
    """Each copy counts its shards."""
    ParallelContext.counts = property(lambda self: self.tp.index == 0)  # type: ignore[assignment]


def shards_of_the_first_dimension() -> None:
    """A rank takes its place among copies for its place among shards."""

    def rows_of(parameter: Any) -> range:
        mesh, rows = parameter.device_mesh, parameter.shape[0]
        size = -(-rows // mesh.size(-1))
        start = min(rows, mesh.get_local_rank(0) * size)
        return range(start, min(rows, start + size))

    parameter_segments.shard_rows = rows_of


BUGS: dict[str, Callable[[], None]] = {
    "sum over copies": copies_not_summed,
    "norm": norm_of_every_copy,
    "place": shards_of_the_first_dimension,
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_rejected(name: str) -> None:
    assert failures(verdicts(LAYOUTS["full"](), prepare=BUGS[name])), f"{name} passes"


def over(layout: str, steps: int, number: int | None) -> Spec:
    """A run of digits whose modules are sharded over some of their replicas."""
    modules = {(name, "shard_over"): number for name in ("vision", "language") if number}
    return make_spec(layout, steps, modules=modules)


def test_a_run_goes_on_with_other_copies(tmp_path: Path) -> None:
    alone = numbers(run(over("one rank", 5, None), tmp_path / "alone"))
    run(over("fully sharded dp4", 3, 2), tmp_path / "run")
    went_on = numbers(run_anew(over("colocated dp4", 5, 1), tmp_path / "run"))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(alone[step], rel=1e-9)


def test_copies_cost_a_sum_and_memory() -> None:
    """Fewer replicas for each copy hold larger shards."""

    def held(number: int | None) -> tuple[int, float]:
        model = {"hidden": 512, "heads": 8, "kv_heads": 8, "head_dim": 64}
        given = made({}, {"shard_over": number, "model": model})
        (row, *_) = Estimator.of(Plan.of(given)).estimates().ranks
        return row.memory.optimizer, row.reducing

    assert held(1)[0] > 1.5 * held(2)[0] > 2 * held(None)[0]
    assert held(2)[1] > held(None)[1]


@pytest.mark.parametrize("layout", ["full", "Muon"])
def test_copies_stay_equal(layout: str) -> None:
    assert not failures(training_verdicts(LAYOUTS[layout]()))
