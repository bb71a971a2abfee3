"""A checkpoint of experts goes on elsewhere: other ep, split experts, shared groups, cp, stages."""

from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import LANGUAGE, make_spec, numbers, run, run_anew

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.spec import Spec

MOE = {"experts": 4, "top_k": 2, "width": 24, "bias_update_rate": 0.05}
MAMBA = {"heads": 12, "head_dim": 4, "state": 6, "groups": 1, "chunk": 8, "conv": 3}
MODELS: dict[str, dict[str, Any]] = {
    "decoder": LANGUAGE | {"moe": MOE | {"shared": 12, "every": 2}},
    "hybrid": {key: LANGUAGE[key] for key in LANGUAGE if key not in ("layers", "qk_norm")}
    | {"kind": "hybrid", "pattern": "ME*-M", "mamba": MAMBA, "moe": MOE},
}
# A layout of test_checkpoints, and the grid of its experts. A hybrid has one group of Mamba, which
# tp and cp ranks share.
GRIDS: dict[str, tuple[str, dict[str, int]]] = {
    "one rank": ("one rank", {}),
    "ep2 in stages": ("pp2", {"ep": 2}),
    "ep2, split in two": ("colocated dp4, tp2 dp2", {"ep": 2, "tp": 2}),
    "ep4 over cp2 tp2": ("cp2 tp2 sp", {"ep": 4}),
    "ep4, fully sharded": ("fully sharded dp4", {"ep": 4}),
    "two replicas, fully sharded": ("fully sharded dp4", {"ep": 2}),
}
PAIRS = [
    ("decoder", "ep2, split in two", "two replicas, fully sharded"),
    ("hybrid", "ep4 over cp2 tp2", "ep2 in stages"),
]
MORE_PAIRS = [
    ("decoder", "ep2 in stages", "ep2, split in two"),
    ("decoder", "ep4, fully sharded", "one rank"),
    ("decoder", "one rank", "ep2 in stages"),
    ("hybrid", "ep2 in stages", "ep2, split in two"),
    ("hybrid", "ep2, split in two", "two replicas, fully sharded"),
    ("hybrid", "two replicas, fully sharded", "ep4 over cp2 tp2"),
]


def of_experts(model: str, name: str, steps: int) -> Spec:
    layout, experts = GRIDS[name]
    changes: dict[Any, Any] = {
        ("language", "model"): MODELS[model],
        ("language", "experts"): experts,
    }
    made = make_spec(layout, steps, modules=changes)
    assert not [item for item in check(made) if item.is_error]
    return made


@pytest.fixture(scope="module")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[int, dict[str, float]]]:
    """Five steps of each model on one rank."""
    return {
        model: numbers(run(of_experts(model, "one rank", 5), tmp_path_factory.mktemp(model)))
        for model in MODELS
    }


@pytest.mark.parametrize(
    ("model", "first", "second"),
    [*PAIRS, *(pytest.param(*pair, marks=pytest.mark.faults) for pair in MORE_PAIRS)],
)
def test_a_run_goes_on_on_another_grid_of_experts(
    model: str,
    first: str,
    second: str,
    uninterrupted: dict[str, dict[int, dict[str, float]]],
    tmp_path: Path,
) -> None:
    """Losses and norms of the last two steps are those of a run on one rank."""
    run(of_experts(model, first, 3), tmp_path)
    went_on = numbers(run_anew(of_experts(model, second, 5), tmp_path))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(uninterrupted[model][step], rel=1e-9)
