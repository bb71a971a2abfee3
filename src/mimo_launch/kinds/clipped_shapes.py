"""The shapes of linear maps that clip what they read and what they give.

Decides: the bounds of each map, and what a block keeps besides for their backward.
Relies on: `shapes` for the maps.
Leaves: which model has such maps to its kind, clipping to `layers.clipped`.
Source: `transformers` 5.24, models/gemma4, `Gemma4ClippableLinear`.
"""

from collections.abc import Mapping
from math import inf
from typing import ClassVar

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.saved_activations import Part, Passes, Saved
from mimo_launch.kinds.shapes import ColumnShape, Output, RowShape
from mimo_launch.kinds.weights import LayerShape, Parameters, buffer

# The bounds of a map, and their first values.
BOUNDS = {"input_min": -inf, "input_max": inf, "output_min": -inf, "output_max": inf}


@frozen
class ClippedShape(LayerShape):
    """One map with bounds of its inputs and outputs; they do not train, and clip nothing at first.

    Every tp rank has all of them.
    """

    layer = "mimo_launch.layers.clipped:Clipped"
    names_itself: ClassVar[bool] = False

    name: str
    inside: ColumnShape | RowShape

    def own(self, tp: int) -> Parameters:
        """Return the bounds."""
        return {
            bound: (buffer(f"{self.name}.{bound}", 1, "constant", start),)
            for bound, start in BOUNDS.items()
        }


@frozen
class ClippedColumnsShape(LayerShape):
    """Linear maps of one input as in a `ColumnShape`, each with bounds, so that none are fused."""

    layer = "mimo_launch.layers.clipped:ClippedColumns"
    names_itself: ClassVar[bool] = False

    width: int
    outputs: tuple[Output, ...]

    def parts(self) -> Mapping[str, LayerShape]:
        """Return the maps by name."""
        return {
            each.name: ClippedShape(each.name, ColumnShape(self.width, (each,)))
            for each in self.outputs
        }


def columns(
    width: int, outputs: tuple[Output, ...], *, clipped: bool
) -> ColumnShape | ClippedColumnsShape:
    """Return maps of one input at the start of a region."""
    return (ClippedColumnsShape if clipped else ColumnShape)(width, outputs)


def row(inside: RowShape, *, clipped: bool) -> RowShape | ClippedShape:
    """Return a map at the end of a region."""
    return ClippedShape(inside.name, inside) if clipped else inside


def saved_by_clips(part: Part, maps: int, passes: Passes) -> tuple[Saved, ...]:
    """Return the streams that clips of a part keep, of `maps` at its start and one at its end.

    Clips keep what they read, and products what they clipped.
    """
    keeps = passes.weights_train or passes.adapts
    found = (
        Saved(name=f"clipped inputs of {part}", stream=maps, for_weights=True, part=part),
        Saved(name=f"output of {part}, before its clip", stream=1, shared=True, part=part),
    )
    # A product would not keep its input for frozen weights, but a clip does.
    unclipped = Saved(name=f"input of {part}, before its clips", stream=1, part=part, normed=True)
    return found if keeps else (*found, unclipped)
