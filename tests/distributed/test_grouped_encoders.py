"""Encoders on ranks of their own that take several microbatches at once, against one rank."""

from typing import Any

import pytest
from tests.support.proof import failures, verdicts
from tests.support.specs import Box, box, spec

UNRELATED = {"vision": box(0, dp=4), "language": box(4, dp=3)}
# Each microbatch has fewer samples, over all replicas of language, than the encoder has replicas.
LAYOUTS: dict[str, tuple[dict[str, Box], dict[str, Any]]] = {
    "dp 4 in front of dp 3": (UNRELATED, {"microbatches": 8, "encoder_microbatches": 4}),
    "one group": (UNRELATED, {"microbatches": 4, "encoder_microbatches": 4}),
    "pipelines on both sides": (
        {"vision": box(0, pp=2, dp=2), "language": box(4, pp=2)},
        {"microbatches": 6, "encoder_microbatches": 2, "text_only": 0.3},
    ),
    "gpipe": (
        {"vision": box(0, tp=2, dp=2), "language": box(4, pp=2)},
        {"microbatches": 4, "encoder_microbatches": 2, "kind": "gpipe"},
    ),
    "interleaved, two depths": (
        {
            "vision": box(0, pp=2, dp=2),
            "glance": box(4, dp=2),
            "language": box(6, pp=2, model={"layers": 4}),
        },
        {
            "microbatches": 4,
            "encoder_microbatches": 2,
            "kind": "interleaved",
            "virtual_stages": 2,
        },
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_groups_of_microbatches_give_the_one_rank_gradients(name: str) -> None:
    """Oracle 5 in float64: loss, norms, every gradient, the clipped update; two steps."""
    modules, settings = LAYOUTS[name]
    assert failures(verdicts(spec(modules, **settings))) == []
