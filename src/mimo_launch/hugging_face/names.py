"""The names of tensors: one table of a family from ours to those of its files.

Decides: how a name is looked up, and filled with the numbers of ours.
Relies on: `family.Place` for where in a tensor ours lies.
Leaves: the tables to the families.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from mimo_launch.hugging_face.family import Place

# The place of a tensor of a model, by the numbers in our name, such as those of layer and expert.
Found = Callable[..., Place]
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Names:
    """A table of names, ours first; a `*` stands for a number, which is the same in both.

    Ours is a tensor, or a layer, of which weight and bias have the same names there. Theirs may be
    a function of our model, followed by the numbers in our name, that returns a place.
    """

    table: Mapping[str, str | Found]

    def __call__(self, name: str, model: Any) -> Place:
        """Return the place of our tensor, by its name without the module. Raises: KeyError."""
        ours = _NUMBER.sub("*", name)
        layer, _, kind = ours.rpartition(".")
        entry, behind = (self.table[ours], "") if ours in self.table else (self.table[layer], kind)
        numbers = _NUMBER.findall(name)
        place = Place(entry) if isinstance(entry, str) else entry(model, *map(int, numbers))
        theirs = f"{place.name}.{behind}" if behind else place.name
        for each in numbers:
            theirs = theirs.replace("*", each, 1)
        return replace(place, name=theirs)

    def __or__(self, table: Mapping[str, str | Found]) -> "Names":
        """Return these names with others beside them, or instead of them."""
        return Names({**self.table, **table})


def in_layers(before: str, names: Mapping[str, str | Found]) -> dict[str, str | Found]:
    """Return names inside of layers as those of a module; `before` is what theirs begin with."""

    def inside(entry: str | Found) -> str | Found:
        if isinstance(entry, str):
            return before + entry

        def found(model: Any, *numbers: int) -> Place:
            place = entry(model, *numbers)
            return replace(place, name=before + place.name)

        return found

    return {f"layers.*.{ours}": inside(entry) for ours, entry in names.items()}


def fused(
    name: str,
    ours: Sequence[str],
    rows: Callable[[Any], Sequence[int]],
    shape: Callable[[Any], tuple[int, ...]] | None = None,
) -> dict[str, Found]:
    """Return the places of tensors or layers of ours whose rows follow each other in one of theirs.

    `rows` are how many each has in a model; `shape` is that of the whole, if it differs from ours.
    """

    def found(index: int, model: Any, *numbers: int) -> Place:
        del numbers
        each = rows(model)
        return Place(name, sum(each[:index]), each[index], shape and shape(model))

    return {each: partial(found, index) for index, each in enumerate(ours)}


# The parts of attention that many towers fuse, and how many rows each has.
QKV = tuple(f"attention.{x}" for x in "qkv")


def qkv_rows(model: Any) -> Sequence[int]:
    """Return how many rows of a fused tensor make queries, keys and values of a tower."""
    return [model.hidden] * 3


def patches(name: str, *, in_time: bool = False) -> Found:
    """Return the place of the embedding of patches that is a convolution of our model's images.

    `in_time`: or of its videos.
    """

    def found(model: Any) -> Place:
        sides = (*((model.temporal_patch,) if in_time else ()), model.patch, model.patch)
        return Place(name, shape=(model.hidden, model.channels, *sides))

    return found


def positions(name: str, tokens: int = 0) -> Found:
    """Return the place of a table of positions with some tokens before the patches."""

    def found(model: Any) -> Place:
        return Place(name, shape=(1, tokens + prod(model.image or (0, 0)), model.hidden))

    return found


def is_behind(name: str, before: str, layers: int) -> bool:
    """Return whether a tensor of a file is of a layer behind the last one that is used.

    `before` is what stands before the number of a layer.
    """
    number = name.removeprefix(before).partition(".")[0]
    return name.startswith(before) and number.isdecimal() and int(number) >= layers
