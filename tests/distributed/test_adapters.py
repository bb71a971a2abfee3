"""Adapters: on every layout, each trains as on one rank, and the weights below them stay."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.planted_experts import mixture
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.specs import box, spec

from mimo_launch.spec.spec import Spec

LORA = {"rank": 3, "alpha": 5.0}


def made(
    vision: dict[str, Any] | None = None, language: dict[str, Any] | None = None, **rest: Any
) -> Spec:
    """Vision and language with adapters."""
    modules = {
        "vision": box(**({"adapter": LORA} | (vision or {}))),
        "language": box(**({"adapter": LORA} | (language or {}))),
    }
    return spec(modules, **({"microbatches": 2, "mbs": 2} | rest))


LAYOUTS: dict[str, Callable[[], Spec]] = {
    "one rank": made,
    "tp 2": lambda: made({"tp": 2}, {"tp": 2}),
    "sequence parallel, heads shared": lambda: made(
        {"tp": 2, "dp": 2, "sequence_parallel": True},
        {"tp": 4, "sequence_parallel": True, "model": {"kv_heads": 2}},
    ),
    "queries and values alone": lambda: made(
        {"dp": 2, "adapter": {**LORA, "targets": ["q", "v"]}},
        {"tp": 4, "model": {"kv_heads": 1}, "adapter": {**LORA, "targets": ["v"], "rslora": True}},
        mbs=4,
    ),
    "dp 2, fully sharded": lambda: made(
        {"dp": 2, "sharding": "full"}, {"dp": 2, "sharding": "full"}
    ),
    "pp 2, tied": lambda: made({"dp": 2}, {"pp": 2, "model": {"tied": True}}),
    "cp 2, recomputed": lambda: made(
        {"cp": 2, "recompute": "full"}, {"cp": 2, "tp": 2, "first": 0, "recompute": "full"}
    ),
    "experts": lambda: made(
        {"dp": 4},
        {"tp": 2, "dp": 2, "experts": {"ep": 2}, "model": mixture(width=8)},
    ),
    "trained projector": lambda: made({"dp": 2, "frozen": "except_projector"}, {"tp": 2}),
    "trained vision": lambda: made({"dp": 2, "adapter": None}, {"tp": 2}),
    "frozen language": lambda: made({"dp": 2}, {"tp": 2, "adapter": None, "frozen": True}),
    "packed documents": lambda: made({"dp": 2}, {"cp": 2}, packing=True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_adapters_get_the_gradients_of_one_rank(layout: str) -> None:
    found = verdicts(LAYOUTS[layout]())
    assert not failures(found)
    assert sum(each.tensors for each in found if each.what == "gradients") > 0


def test_only_adapters_move() -> None:
    assert not failures(training_verdicts(LAYOUTS["tp 2"]()))
