"""A checkpoint of experts on one grid goes on on another: other ep, split experts, other stages."""

from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import LANGUAGE, make_spec, numbers, run

from mimo_launch.layout.checks.entry import check
from mimo_launch.spec.model import Spec

MOE = {
    "experts": 4, "top_k": 2, "width": 24, "shared": 12, "every": 2, "bias_update_rate": 0.05,
}  # fmt: skip
MODEL = LANGUAGE | {"moe": MOE}
GRIDS: dict[str, tuple[str, dict[str, int]]] = {
    "one rank": ("one rank", {}),
    "ep2 in stages": ("pp2", {"ep": 2}),
    "ep2, split in two": ("colocated dp4, tp2 dp2", {"ep": 2, "tp": 2}),
    "ep4, fully sharded": ("fully sharded dp4", {"ep": 4}),
    "two replicas, fully sharded": ("fully sharded dp4", {"ep": 2}),
}
PAIRS = [
    ("ep2 in stages", "ep2, split in two"),
    ("ep2, split in two", "two replicas, fully sharded"),
    ("ep4, fully sharded", "one rank"),
    ("one rank", "ep2 in stages"),
]


def of_experts(name: str, steps: int) -> Spec:
    layout, experts = GRIDS[name]
    changes: dict[Any, Any] = {("language", "model"): MODEL, ("language", "experts"): experts}
    made = make_spec(layout, steps, modules=changes)
    assert not [item for item in check(made) if item.is_error]
    return made


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, float]]:
    """Five steps on one rank."""
    return numbers(run(of_experts("one rank", 5), tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize(
    ("first", "second"),
    [*PAIRS[:2], *(pytest.param(*pair, marks=pytest.mark.faults) for pair in PAIRS[2:])],
)
def test_a_run_goes_on_on_another_grid_of_experts(
    first: str, second: str, uninterrupted: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    """Losses and norms of the last two steps are those of a run on one rank."""
    run(of_experts(first, 3), tmp_path)
    went_on = numbers(run(of_experts(second, 5), tmp_path))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(uninterrupted[step], rel=1e-9)
