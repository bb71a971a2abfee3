"""Layers built from their shapes (`kinds.weights.LayerShape`).

Decides: that a layer declares the weights that its shape owns, and builds the layers inside it.
Relies on: the class that a shape names.
Leaves: the part of a weight that a rank holds to `parallel_context`.
"""

from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

from torch import nn

from mimo_launch.kinds.shapes import ListShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import SegmentedModule

S = TypeVar("S", bound=LayerShape)


class ShapedLayer(SegmentedModule, Generic[S]):
    """A layer with the weights of its shape, unset, and with the layers inside it.

    A subclass annotates the attributes that it uses; one that the shape does not have is None.
    """

    def __init__(self, context: ParallelContext, shape: S) -> None:
        super().__init__()
        self.context, self.shape, self.names_itself = context, shape, shape.names_itself
        for attribute, weights in shape.held(context.tp.size, context.base).items():
            if not weights:
                setattr(self, attribute, None)
            elif weights[0].role == "buffer":
                segments = context.segments(weights)
                self.declare_buffer(attribute, *segments, dtype=context.dtype)
            else:
                self.declare(attribute, *context.segments(weights), dtype=context.dtype)
        add_parts(self, context, shape)


def add_parts(module: nn.Module, context: ParallelContext, shape: LayerShape) -> None:
    """Add the layers inside a shape to a module, by name; None where there is none."""
    for name, part in (*shape.parts().items(), *shape.adapters(context.adapter).items()):
        setattr(module, name, None if part is None else built(context.inside(name), part))


def built(context: ParallelContext, shape: LayerShape) -> Any:
    """Return the layer of a shape, with unset weights."""
    if isinstance(shape, ListShape):
        return nn.ModuleList(built(context, each) for each in shape.layers)
    return _class(shape.layer)(context, shape)


@cache
def _class(path: str) -> Any:
    file, _, name = path.partition(":")
    return getattr(import_module(file), name)
