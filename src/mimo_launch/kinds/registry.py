"""Finds the kind of a model of the spec.

Decides: that every class of this room with a `model` from the spec is a kind; which files are read:
only that of the kind, where its name says so.
Relies on: a file per kind.
Leaves: everything about a kind to its file.
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from typing import get_args, get_type_hints

from mimo_launch import kinds
from mimo_launch.kinds.kind import CACHED, ModelKind, layer_shape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.encoders import EncoderModel
from mimo_launch.spec.language_models import CausalModel

# The file of a kind that has not its name.
_FILES = {"vit": "vision"}


def kind_of(model: EncoderModel | CausalModel) -> ModelKind:
    """Return a model with the facts of its kind."""
    return _kind_of(type(model))(model)


@lru_cache(maxsize=CACHED)
def layer_of(model: EncoderModel | CausalModel, number: int) -> LayerShape:
    """Return the shape of a layer of a model (cached: to make its kind is 5 % of a search)."""
    return layer_shape(kind_of(model), number)


@cache
def _kind_of(model: type) -> type[ModelKind]:
    """Return the kind of a class of models of the spec."""
    files = [found.name for found in iter_modules(kinds.__path__)]
    # A spec needs one or two of them, and to read all takes a twentieth of the time of `validate`.
    words = get_args(model.__annotations__.get("kind"))
    named = [name for name in files if name in {_FILES.get(word, word) for word in words}]
    for names in (named, files):
        for name in names:
            import_module(f"{kinds.__name__}.{name}")
        # `dataclass(slots=True)` replaces a class; the old one stays a subclass, before the new.
        found = {get_type_hints(kind)["model"]: kind for kind in _below(ModelKind)}
        if model in found:
            return found[model]
    raise ValueError(f"no file of kinds is about {model.__name__}")


def _below(kind: type) -> Iterator[type[ModelKind]]:
    """Yield every class below `kind` that is not abstract."""
    below: list[type] = kind.__subclasses__()
    for each in below:
        if not isabstract(each):
            yield each
        yield from _below(each)
