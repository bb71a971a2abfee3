"""A checkpoint of a hybrid model with experts goes on elsewhere: shared groups, cp, stages."""

from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import LANGUAGE, make_spec, numbers, run

from mimo_launch.layout.checks.entry import check
from mimo_launch.spec.model import Spec

MAMBA = {"heads": 12, "head_dim": 4, "state": 6, "groups": 1, "chunk": 8, "conv": 3}
MODEL = {key: LANGUAGE[key] for key in LANGUAGE if key not in ("layers", "qk_norm")} | {
    "kind": "hybrid", "pattern": "ME*-M", "mamba": MAMBA,
    "moe": {"experts": 4, "top_k": 2, "width": 24, "bias_update_rate": 0.05},
}  # fmt: skip
GRIDS: dict[str, tuple[str, dict[str, int]]] = {
    "one rank": ("one rank", {}),
    "stages, ep2": ("pp2", {"ep": 2}),
    "group shared over tp2": ("colocated dp4, tp2 dp2", {"ep": 2, "tp": 2}),
    "group shared over cp2 tp2": ("cp2 tp2 sp", {"ep": 4}),
    "fully sharded": ("fully sharded dp4", {"ep": 2}),
}
PAIRS = [
    ("group shared over cp2 tp2", "stages, ep2"),
    ("stages, ep2", "group shared over tp2"),
    ("group shared over tp2", "fully sharded"),
    ("fully sharded", "group shared over cp2 tp2"),
]


def of_hybrid(name: str, steps: int) -> Spec:
    layout, experts = GRIDS[name]
    changes: dict[Any, Any] = {("language", "model"): MODEL, ("language", "experts"): experts}
    made = make_spec(layout, steps, modules=changes)
    assert not [item for item in check(made) if item.is_error]
    return made


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, float]]:
    """Five steps on one rank."""
    return numbers(run(of_hybrid("one rank", 5), tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize(
    ("first", "second"),
    [PAIRS[0], *(pytest.param(*pair, marks=pytest.mark.faults) for pair in PAIRS[1:])],
)
def test_a_hybrid_run_goes_on_on_another_grid(
    first: str, second: str, uninterrupted: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    """Losses and norms of the last two steps are those of a run on one rank."""
    run(of_hybrid(first, 3), tmp_path)
    went_on = numbers(run(of_hybrid(second, 5), tmp_path))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(uninterrupted[step], rel=1e-9)
