"""Finds the kind of a model of the spec.

Decides: that every class of this room with a `model` from the spec is a kind.
Relies on: a file per kind.
Leaves: everything about a kind to its file.
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from typing import get_type_hints

from mimo_launch import kinds
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.encoders import EncoderModel
from mimo_launch.spec.language_models import CausalModel


def kind_of(model: EncoderModel | CausalModel) -> ModelKind:
    """Return a model with the facts of its kind."""
    return _kinds()[type(model)](model)


@lru_cache(maxsize=1024)
def layer_of(model: EncoderModel | CausalModel, number: int) -> LayerShape:
    """Return the shape of a layer of a model."""
    return kind_of(model).layer(number)


@cache
def _kinds() -> dict[type, type[ModelKind]]:
    """Return the kind of each model of the spec."""
    for found in iter_modules(kinds.__path__, f"{kinds.__name__}."):
        import_module(found.name)
    return {get_type_hints(kind)["model"]: kind for kind in _below(ModelKind)}


def _below(kind: type) -> Iterator[type[ModelKind]]:
    """Yield every class below `kind` that is not abstract."""
    below: list[type] = kind.__subclasses__()
    for each in below:
        if not isabstract(each):
            yield each
        yield from _below(each)
