"""Weights that tp ranks hold whole have the gradients of one rank, with all tokens and with shares.

What a rank has of such a gradient depends on where the weight acts: between regions on its tokens,
which are all tokens only without sequence parallelism; inside a region on its share of the width.
"""

from typing import Any

import pytest
from tests.support.proof import failures, verdicts
from tests.support.specs import box, spec
from tests.unit.test_initial_values import BESIDE, KINDS

from mimo_launch.spec.spec import Spec


def on_two_ranks(kind: str, *, shares: bool) -> Spec:
    """Return a spec whose module of a kind has two tp ranks."""
    other = KINDS[kind].get("kind", "decoder") not in ("decoder", "hybrid")
    name = kind if kind in ("vision", "audio") else "more" if other else "language"
    grid = {"tp": 2, "sequence_parallel": shares}
    modules: dict[str, Any] = {name: box(0, model=KINDS[kind], **grid, **BESIDE.get(kind, {}))}
    modules |= {"vision": box(0)} if kind in ("connector", "predictor") else {}
    modules |= {} if name == "language" else {"language": box(0)}
    # Among so many clips some have several tokens, without which attention has no gradients.
    number = 2 if kind in ("audio", "aut", "conformer") else 1
    return spec(modules, microbatches=number, mbs=4, max_patches=36, max_frames=24)


@pytest.mark.parametrize("shares", [False, True], ids=["all tokens", "shares of tokens"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_one_rank(kind: str, shares: bool) -> None:
    assert failures(verdicts(on_two_ranks(kind, shares=shares))) == []
