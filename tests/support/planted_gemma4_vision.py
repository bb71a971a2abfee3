"""A tower of Gemma 4, and known ways to get it wrong; `planted` lists them with the others."""

from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.kinds.gemma4_vision import Gemma4VisionKind
from mimo_launch.layers import clipped, pointwise
from mimo_launch.layers.clipped import Clipped
from mimo_launch.layers.dropout import Draws
from mimo_launch.layers.linear import RowLinear, mapped
from mimo_launch.models import gemma4_vision
from mimo_launch.models.gemma4_vision import LearnedPlaces
from mimo_launch.spec.spec import Spec

MODEL: dict[str, Any] = {
    "kind": "gemma4_vision", "layers": 2, "places": 24, "shuffle": 2, "standardize": True,
    "rope_theta": 20.0, "norm_eps": 1e-2,
}  # fmt: skip

CLIPPED = MODEL | {"clipped_linears": True}


def pooled(
    vision: dict[str, Any], language: dict[str, Any] | None = None, /, **sections: Any
) -> Spec:
    """Such a tower before a decoder on the ranks after it, or on others; images of any size."""
    ranks = 1
    for axis in ("tp", "cp", "pp", "dp"):
        ranks *= vision.get(axis, 1)
    modules = {
        "vision": box(0, **{"model": MODEL, **vision}),
        "language": box(**{"first": ranks, **(language or {})}),
    }
    usual = {"microbatches": 2, "mbs": 2, "max_images": 2, "max_patches": 24, "text_only": 0.2}
    return spec(modules, **{**usual, **sections})


def rows_for_columns() -> None:
    """A patch reads the vector of its row where that of its column is meant, and the reverse."""
    correct = LearnedPlaces.forward
    LearnedPlaces.forward = (  # type: ignore[method-assign]
        lambda self, places_n2: correct(self, places_n2.flip(1))
    )


def columns_alone() -> None:
    """A patch reads the vector of its column only."""
    LearnedPlaces.forward = (  # type: ignore[method-assign]
        lambda self, places_n2: F.embedding(places_n2[:, 1], self.weight)
    )


def whole_heads_turned() -> None:
    """Numbers half a head apart rotate together."""
    pointwise.rotated_by_halves = pointwise.rotated


def _turns(**wrong: Any) -> None:
    correct = Gemma4VisionKind.turns
    Gemma4VisionKind.turns = property(  # type: ignore[assignment]
        lambda self: replace(correct.fget(self), **wrong)
    )


def rows_turn_first() -> None:
    """The first half of a head rotates by the row."""
    _turns(column_first=False)


def usual_base() -> None:
    """Frequencies have the base of other towers."""
    _turns(theta=10000.0)


def _attention(**wrong: Any) -> None:
    correct = Gemma4VisionKind.attention
    Gemma4VisionKind.attention = (  # type: ignore[method-assign]
        lambda self: replace(correct(self), **wrong)
    )


def values_not_normed() -> None:
    """Only queries and keys have norms."""
    _attention(value_norm=False)


def scores_divided() -> None:
    """Scores are divided by the root of the size of a head."""
    _attention(score_size=None)


def width_of_means() -> None:
    """Rows are not multiplied by the root of the width, which the epsilon of their norm shows."""
    correct = gemma4_vision._normed
    gemma4_vision._normed = lambda x, *rest: correct(x / x.shape[1] ** 0.5, *rest)


def rows_not_standardized() -> None:
    """Rows go to their norm as they are."""
    correct = gemma4_vision._normed
    gemma4_vision._normed = lambda x, bias, weight, eps: correct(x, None, None, eps)


def gates_of_silu() -> None:
    """Gates have another activation."""
    pointwise.GATED["gelu_tanh"] = pointwise.GATED["silu"]


def inputs_unclipped() -> None:
    """Maps clip only what they give."""
    Clipped.forward = (  # type: ignore[method-assign]
        lambda self, x, draws=None: clipped.clipped(
            self.inside(x, draws), self.output_min, self.output_max
        )
    )


def outputs_unclipped() -> None:
    """Maps clip only what they read."""
    Clipped.forward = (  # type: ignore[method-assign]
        lambda self, x, draws=None: self.inside(
            clipped.clipped(x, self.input_min, self.input_max), draws
        )
    )


def terms_clipped() -> None:
    """The last map of a region clips the terms of each tp rank, not their sum."""
    correct = Clipped.forward

    def wrong(self: Clipped, x: Tensor, draws: Draws | None = None) -> Tensor:
        if not isinstance(self.inside, RowLinear):
            return correct(self, x, draws)
        read = clipped.clipped(x, self.input_min, self.input_max)
        terms = mapped(self.inside, "weight", read, None)
        return self.context.leave(clipped.clipped(terms, self.output_min, self.output_max))

    Clipped.forward = wrong  # type: ignore[method-assign]


def gradients_past_bounds() -> None:
    """Numbers outside of their bounds have the gradients of those inside."""
    correct = clipped.clipped
    clipped.clipped = lambda x, *bounds: x + (correct(x, *bounds) - x).detach()


SPLIT = {"tp": 2, "cp": 2, "sequence_parallel": True}
GEMMA4_VISION_BUGS = {
    "rows for columns": (rows_for_columns, pooled({"cp": 2})),
    "columns alone": (columns_alone, pooled({"tp": 2})),
    "whole heads turned": (whole_heads_turned, pooled({"tp": 2})),
    "Gemma 4 rows turn first": (rows_turn_first, pooled(SPLIT)),
    "Gemma 4 base of other towers": (usual_base, pooled({})),
    "values of patches not normed": (values_not_normed, pooled({"tp": 2})),
    "scores of patches divided": (scores_divided, pooled({})),
    "width of means": (width_of_means, pooled({})),
    "rows not standardized": (rows_not_standardized, pooled({"pp": 2})),
    "inputs of maps unclipped": (inputs_unclipped, pooled({"model": CLIPPED, "tp": 2})),
    "outputs of maps unclipped": (outputs_unclipped, pooled({"model": CLIPPED})),
    "terms of tp ranks clipped": (terms_clipped, pooled({"model": CLIPPED, "tp": 2})),
    "gradients past bounds": (gradients_past_bounds, pooled({"model": CLIPPED, "cp": 2})),
    "gates of silu": (gates_of_silu, pooled({"tp": 2})),
}
