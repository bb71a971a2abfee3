"""The same model, batch and seed gives the same metrics on every layout, step after step."""

from typing import Any

import pytest
from tests.distributed.test_topologies import run_steps
from tests.support.running_ranks import run_on_running_ranks

from mimo_launch.checks.all_checks import check
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import StepFinished

VISION = {"kind": "vit", "layers": 2, "hidden": 24, "heads": 6, "patch": 4}
LANGUAGE = {
    "kind": "decoder",
    "layers": 2,
    "hidden": 24,
    "heads": 6,
    "kv_heads": 2,
    "head_dim": 4,
    "mlp": 48,
    "vocab": "digits",
    "qk_norm": True,
}
SP, FULL = {"sequence_parallel": True}, {"sharding": "full"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {"vision": ("0", {}), "language": ("0", {})},
    "colocated, one to one": {"vision": ("0-3", {"dp": 4}), "language": ("0-3", {"dp": 4})},
    "colocated, fan-in": {
        "vision": ("0-3", {"dp": 4}), "language": ("0-3", {"tp": 2, "dp": 2}), "k": 1,
    },
    "colocated, fan-out": {
        "vision": ("0-3", {"tp": 2, "dp": 2}), "language": ("0-3", {"dp": 4}), "k": 2,
    },
    "disjoint, 4:1": {"vision": ("0-3", {"dp": 4}), "language": ("4", {})},
    "disjoint, 1:4": {"vision": ("0", {}), "language": ("1-4", {"dp": 4})},
    "disjoint, tp 3 and tp 2": {
        "vision": ("0-2", {"tp": 3}), "language": ("3-6", {"tp": 2, "dp": 2}),
    },
    "language first, tp 6": {"vision": ("6-7", {"dp": 2}), "language": ("0-5", {"tp": 6})},
    "partial overlap": {
        "vision": ("0-3", {"dp": 4}), "language": ("2-5", {"tp": 2, "dp": 2}),
    },
    "sequence parallel": {
        "vision": ("0-1", {"tp": 2}, SP), "language": ("2-5", {"tp": 2, "dp": 2}, SP),
    },
    "fully sharded": {
        "vision": ("0-1", {"dp": 2}, FULL),
        "language": ("0-3", {"dp": 4}, FULL),
    },
}  # fmt: skip


def make_spec(layout: dict[str, Any], **changes: Any) -> Spec:
    modules = {}
    for name, model in (("vision", VISION), ("language", LANGUAGE | changes)):
        ranks, grid, *more = layout[name]
        modules[name] = {"model": model, "ranks": ranks, "grid": grid, **(more[0] if more else {})}
    return Spec.model_validate(
        {
            "version": 1,
            "name": "agree",
            "modules": modules,
            "schedule": {"microbatches": 2, "encoder_microbatches": layout.get("k")},
            "batch": {"global": 16, "seq": 36},
            "data": {"kind": "digits"},
            "optimizer": {"kind": "sgd", "lr": 0.05, "clip": 1.0},
            "train": {"steps": 10, "seed": 3, "precision": "fp64"},
        }
    )


def metrics(name: str) -> list[dict[str, float]]:
    """Loss and every module's gradient norm, per step."""
    return metrics_of(make_spec(LAYOUTS[name]))


def metrics_of(spec: Spec) -> list[dict[str, float]]:
    assert not [d for d in check(spec) if d.is_error]
    events = run_on_running_ranks(run_steps, spec, world_size=world_size(spec))
    steps = [e for e in events[0] if isinstance(e, StepFinished)]
    return [{"loss": e.loss, "norm": e.grad_norm, **e.grad_norms} for e in steps]


@pytest.fixture(scope="module")
def one_rank() -> list[dict[str, float]]:
    return metrics("one rank")


# The others, whose single steps are proved as topologies, follow with `nox -s sweep`.
ALWAYS = {"colocated, fan-in", "disjoint, tp 3 and tp 2", "sequence parallel", "fully sharded"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ALWAYS else pytest.mark.sweep)
        for name in LAYOUTS
        if name != "one rank"
    ],
)
def test_ten_steps_agree_with_one_rank(name: str, one_rank: list[dict[str, float]]) -> None:
    """float64, SGD, clipping on: every loss and every norm of ten steps, to 1e-9."""
    found = metrics(name)
    assert len(found) == 10
    for mine, theirs in zip(found, one_rank, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("value_size", [4, 16])
def test_values_of_another_size_than_keys_agree_over_cp(value_size: int) -> None:
    """Kernels of a cp rank's chunks fill up smaller values; larger ones take masks."""
    sizes = {"kv_rank": 12, "q_rank": 10, "rope_head_dim": 4, "v_head_dim": value_size}
    latent = {"mla": sizes, "head_dim": 10, "kv_heads": 6, "qk_norm": False}
    alone, over_cp = (
        metrics_of(make_spec({"vision": ("0", {}), "language": (ranks, grid)}, **latent))
        for ranks, grid in (("0", {}), ("1-2", {"cp": 2}))
    )
    for mine, theirs in zip(over_cp, alone, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)
