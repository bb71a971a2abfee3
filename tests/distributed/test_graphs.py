"""Any graph of modules equals one rank: every kind of bridge, cut over every axis on both ends."""

from typing import Any

import pytest
from tests.support.proof import failures, verdicts
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.diag.diagnostic import Severity

SP: dict[str, Any] = {"sequence_parallel": True}
FULL: dict[str, Any] = {"sharding": "full"}
IMAGES: dict[str, Any] = {"max_images": 2, "text_only": 0.3, "max_patches": 8}


def connector(*reads: str, queries: int | None = None, merge: str = "rows") -> dict[str, Any]:
    model = {"kind": "connector", "merge": merge, **({"queries": queries} if queries else {})}
    return {"model": model, "reads": reads}


ENCODERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a chain on three ranks": (
        {"vision": box(0), "merger": box(1, **connector("vision")), "language": box(2)},
        {},
    ),
    "queries, colocated, dp 2": (
        {
            "vision": box(0, dp=2),
            "merger": box(0, dp=2, **connector("vision", queries=3)),
            "language": box(0, dp=2),
        },
        {},
    ),
    "tp in front, pp behind": (
        {
            "vision": box(0, tp=2),
            "merger": box(2, pp=2, **connector("vision", queries=3)),
            "language": box(4, tp=2, pp=2),
        },
        {"microbatches": 3},
    ),
    "sequence parallel, cp": (
        {
            "vision": box(0, tp=2, **SP),
            "merger": box(2, tp=2, cp=2, **SP, **connector("vision", queries=3)),
            "language": box(6, cp=2),
        },
        {"max_patches": 8},
    ),
    "two towers by width, cp, uneven dp": (
        {
            "vision": box(0, dp=2),
            "depth": box(2),
            "merger": box(1, cp=2, **connector("vision", "depth", merge="width")),
            "language": box(0, dp=3),
        },
        {"max_patches": 8},
    ),
    "two towers by rows, queries, several images": (
        {
            "vision": box(0, dp=2),
            "audio": box(2, model={"kind": "audio"}),
            "merger": box(1, tp=2, **connector("vision", "audio", queries=2)),
            "language": box(3),
        },
        IMAGES,
    ),
    "two readers of one encoder": (
        {
            "vision": box(0, dp=2),
            "merger": box(2, **connector("vision", queries=2)),
            "language": box(3, tp=2, reads=["vision", "merger"]),
        },
        IMAGES,
    ),
    "a chain of three, overlapping": (
        {
            "vision": box(0, dp=2, **FULL),
            "merger": box(1, dp=2, **FULL, **connector("vision", queries=2)),
            "last": box(0, tp=2, **connector("merger")),
            "language": box(0, dp=4, **FULL),
        },
        IMAGES,
    ),
    "a frozen tower behind a connector that trains": (
        {
            "vision": box(0, frozen=True),
            "merger": box(1, tp=2, **connector("vision", queries=2)),
            "language": box(3, frozen=True),
        },
        IMAGES,
    ),
    "a frozen connector passes gradients to its tower": (
        {
            "vision": box(0, pp=2),
            "merger": box(2, pp=2, frozen=True, **connector("vision")),
            "language": box(0, dp=2, frozen=True),
        },
        {"encoder_microbatches": 1},
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_behind_encoders(name: str) -> None:
    modules, settings = ENCODERS[name]
    made = spec(modules, **{"microbatches": 2, "mbs": 2, **settings})
    assert not [each for each in check(made) if each.severity is Severity.ERROR]
    assert failures(verdicts(made)) == []
