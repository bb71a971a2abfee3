"""The names of tensors: one table per family, from our names to the names in its files.

Decides: how a name is looked up, and filled with the numbers from our name.
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

# Returns the place of a tensor from a model and the numbers in our name, such as layer and expert.
Found = Callable[..., Place]
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Names:
    """A table of names, ours first; a `*` matches a number, which is the same in both names.

    Our name is a tensor, or a layer if its weight and bias have the same names in the files. The
    other name may be a function that returns a place from our model and the numbers in our name.
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
        """Return these names with others added, which take precedence."""
        return Names({**self.table, **table})


def in_layers(before: str, names: Mapping[str, str | Found]) -> dict[str, str | Found]:
    """Return names inside layers as names of a module; names in the files begin with `before`."""

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
    """Return the places of our tensors or layers that a file stacks by rows in one tensor.

    `rows` are the numbers of rows of each in a model; `shape` is the shape of the stack, if it
    differs from ours.
    """

    def found(index: int, model: Any, *numbers: int) -> Place:
        del numbers
        each = rows(model)
        return Place(name, sum(each[:index]), each[index], shape and shape(model))

    return {each: partial(found, index) for index, each in enumerate(ours)}


# The parts of attention that many towers fuse, and how many rows each has.
QKV = tuple(f"attention.{x}" for x in "qkv")


def qkv_rows(model: Any) -> Sequence[int]:
    """Return how many rows of a fused tensor belong to queries, keys and values of a tower."""
    return [model.hidden] * 3


def patches(name: str, *, in_time: bool = False) -> Found:
    """Return the place of an embedding of patches, which files hold as a convolution.

    `in_time`: the convolution is over videos, not images.
    """

    def found(model: Any) -> Place:
        sides = (*((model.temporal_patch,) if in_time else ()), model.patch, model.patch)
        return Place(name, shape=(model.hidden, model.channels, *sides))

    return found


def positions(name: str, tokens: int = 0) -> Found:
    """Return the place of a table of positions with `tokens` entries before the patches."""

    def found(model: Any) -> Place:
        return Place(name, shape=(1, tokens + prod(model.image or (0, 0)), model.hidden))

    return found


def is_behind(name: str, before: str, layers: int) -> bool:
    """Return whether a tensor of a file is of a layer after the last one that is used.

    `before` is the part of a name before the number of a layer.
    """
    number = name.removeprefix(before).partition(".")[0]
    return name.startswith(before) and number.isdecimal() and int(number) >= layers
