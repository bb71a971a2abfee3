"""Defines what all sections of the spec share: strictness, types of ranks and numbers, grids.

Decides: that unknown keys are errors and values are never converted; the axes of a grid.
Relies on: pydantic, `wording` for lists.
Leaves: the sections to `module`, `sections`, `spec` and their neighbours; whether a grid fits a
model and its ranks to `checks`.
"""

import os
import re
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.wording import listing


class Axis(StrEnum):
    """A way to divide the work of a module among ranks; the value is its name in a spec."""

    TP = "tp"  # Tensor parallelism cuts the matrices of each layer.
    CP = "cp"  # Context parallelism cuts sequences.
    DP = "dp"  # Data parallelism gives each replica other samples.
    DP_SHARD = "dp_shard"  # Replicas that hold one copy of the weights together.
    DP_COPY = "dp_copy"  # Replicas that hold the same part of other copies.
    PP = "pp"  # Pipeline parallelism gives each rank other layers.
    EP = "ep"  # Expert parallelism gives each rank other experts of a layer.
    EXPERT_TP = "expert_tp"  # Tensor parallelism inside each expert.
    EXPERT_DP = "expert_dp"  # Replicas of the same part of the experts.


# The axes of a grid, in the usual order of ranks.
AXES = (Axis.TP, Axis.CP, Axis.DP, Axis.PP)
# The axes of the ranks of a stage for its experts, the fastest first.
EXPERT_AXES = (Axis.EXPERT_TP, Axis.EP, Axis.EXPERT_DP)
# The one module that every spec has.
LANGUAGE = "language"
# More ranks than any machine has; about the largest numbers that can be planned.
MAX_RANKS, MAX_LAYERS = 2**18, 4096
_RANGE = re.compile(r"^\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?$")


class MissingPartError(Exception):
    """A check read a faulty part of a spec."""


class Strict(BaseModel):
    """Base of every section: unknown keys are errors, values never change.

    A faulty spec is still checked as far as possible: its faulty parts are left out, and reading
    one raises `MissingPartError`, which ends the check that needed it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)
    __slots__ = ("_hash",)
    # Whether it describes a language model, which only the module `language` may be.
    speaks: ClassVar[bool] = False

    def replace(self, **values: Any) -> Self:
        """Return this section with other values, which are not checked."""
        return self.model_copy(update=values)

    def __hash__(self) -> int:
        """Return a hash of all values, kept: sections are in the keys of what plans share."""
        try:
            found: int = object.__getattribute__(self, "_hash")
        except AttributeError:
            found = hash(tuple(self.__dict__.get(name) for name in type(self).model_fields))
            object.__setattr__(self, "_hash", found)
        return found

    if TYPE_CHECKING:
        _hash: int
    else:

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise MissingPartError(name)
            return super().__getattr__(name)


def made_serializable(value: Any) -> Any:
    """Return a value; if it is a section, pydantic can serialize its class by now.

    Classes are made ready for their first section that is read. Before 2.14, pydantic raises
    TypeError for a section that was never read, as a default or one of another process.
    """
    if isinstance(value, Strict):
        type(value).model_rebuild()
    return value


@frozen(kw_only=True)
class Effective:
    """When a key of a model has an effect: with the key `needs`, without the key `unless`.

    A key is set if it is neither false nor null. `why` says of a model that does not fit why the
    key does nothing there.
    """

    why: str
    needs: str | None = None
    unless: str | None = None

    def is_in(self, model: Strict) -> bool:
        """Return whether the key has an effect in a model."""
        needs = self.needs is None or bool(getattr(model, self.needs))
        return needs and not (self.unless and getattr(model, self.unless))


@frozen
class Excluded:
    """A key of a model that may not stand beside the section `by`."""

    by: str


LayerNumbers = tuple[Annotated[int, Field(ge=0)], ...]


class LayerChoice(Strict):
    """A section about some layers of a model: the key `chosen` lists them, counted from 0."""

    chosen: ClassVar[str]
    # What a chosen layer does, in messages.
    meaning: ClassVar[str]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The chosen layers."""
        found: tuple[int, ...] = getattr(self, self.chosen)
        return found


def _in_range(what: str, most: int) -> BeforeValidator:
    """Return what accepts `4` and `"0-3"` as ranks or layers below `most`."""

    def checked(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            value = str(value)
        match = _RANGE.match(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError("not a range")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError("the range ends before it starts")
        if last >= most:
            raise ValueError(f"there is no {what} above {most - 1}")
        return f"{first}-{last}" if last > first else str(first)

    return BeforeValidator(checked)


def _range_schema(what: str, most: int, example: str) -> WithJsonSchema:
    schema = {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": most - 1},
            {"type": "string", "pattern": r"^\s*\d+\s*(-\s*\d+\s*)?$"},
        ],
        "format": f"{what}s",
        "expected": f"one {what} (`4`) or the first and the last (`{example}`)",
    }
    return WithJsonSchema(schema)


Ranks = Annotated[str, _in_range("rank", MAX_RANKS), _range_schema("rank", MAX_RANKS, "0-3")]
LayerRange = Annotated[
    str, _in_range("layer", MAX_LAYERS), _range_schema("layer", MAX_LAYERS, "0-11")
]
_UNITS = {"MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30, "TB": 10**12, "TiB": 2**40}
_SIZE = re.compile(r"^\s*(\d{1,9}(?:\.\d{1,9})?)\s*([A-Za-z]+)\s*$")


def _size(value: Any) -> Any:
    """Accept `141GB` and `80 GiB`. Raises: ValueError for anything else."""
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a size is a number and a unit")
    if match[2] not in _UNITS:
        raise ValueError(f"`{match[2]}` is not a unit; write {listing(list(_UNITS))}")
    if float(match[1]) == 0:
        raise ValueError("it is 0")
    return f"{match[1]}{match[2]}"


_SIZE_SCHEMA = {
    "type": "string",
    "pattern": r"^\s*\d+(\.\d+)?\s*([MGT]i?B)\s*$",
    "format": "size",
    "expected": "a size such as `141GB` or `80GiB`",
}


Size = Annotated[str, BeforeValidator(_size), WithJsonSchema(_SIZE_SCHEMA)]
# Counts that a loop runs over have lower limits; all other counts fit into 32 bits.
MAX_COUNT, MAX_INTEGER = 2**31 - 1, 2**63 - 1
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountFrom0 = Annotated[int, Field(ge=0, le=MAX_COUNT)]


Places = Annotated[int, Field(ge=1, le=MAX_RANKS)]
# Values of an open dp: the ranks divided by the other sizes. `parse` resolves them.
OPEN_DP = ("auto", -1)
_DP_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MAX_RANKS},
        {"enum": list(OPEN_DP)},
    ],
    "expected": f"a whole number from 1 to {MAX_RANKS:,}, `auto` or `-1`",
}
Dp = Annotated[Places, WithJsonSchema(_DP_SCHEMA)]
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
# Codebooks of a codec; each has its own table and output layer.
Codebooks = Annotated[int, Field(ge=1, le=2**10)]
Samples = Annotated[int, Field(ge=1, le=2**20)]
Microbatches = Annotated[int, Field(ge=1, le=2**14)]
Tokens = Annotated[int, Field(ge=1, le=2**27)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


_PERCENT = re.compile(r"^\s*(\d{1,3}(?:\.\d{1,9})?)\s*%\s*$")


def _steps(value: Any) -> Any:
    """Accept `30` and `3%`. Raises: ValueError for anything else."""
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    match = _PERCENT.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("not a number of steps")
    if Fraction(match[1]) > 100:
        raise ValueError("it is more than the run")
    return f"{match[1]}%"


_STEPS_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MAX_COUNT},
        {"type": "string", "pattern": r"^\s*\d{1,3}(\.\d{1,9})?\s*%\s*$"},
    ],
    "expected": f"a whole number from 0 to {MAX_COUNT:,}, or a part of the run such as `3%`",
}
# A number of steps, or a percentage of those of the run.
Steps = Annotated[int | str, BeforeValidator(_steps), WithJsonSchema(_STEPS_SCHEMA)]


def part_of_run(value: int | str, steps: int) -> Fraction:
    """Return what a validated number or percentage means in a run of `steps`, not rounded."""
    return Fraction(value.rstrip("%")) * steps / 100 if isinstance(value, str) else Fraction(value)


def _path(value: Any) -> Any:
    """Return a value unchanged. Raises: ValueError for text that cannot be a path."""
    if isinstance(value, str) and (fault := path_fault(value)):
        raise ValueError(fault)
    return value


def path_fault(name: str) -> str:
    """Return why text cannot be a path, "" if it can."""
    if "\0" in name:
        return "a path cannot contain NUL"
    try:
        lengths = {part: len(os.fsencode(part)) for part in name.split("/")}
    except UnicodeEncodeError:
        return "a path cannot contain half of a pair of surrogates"
    if sum(lengths[part] + 1 for part in name.split("/")) - 1 > _MAX_PATH:
        return f"a path has at most {_MAX_PATH} bytes"
    if (most := max(lengths.values())) > _MAX_NAME:
        return f"the name of a file has at most {_MAX_NAME} bytes, not {most}"
    return ""


def _pattern(value: Any) -> Any:
    """Return a value unchanged. Raises: ValueError for text that cannot name paths."""
    # The names that braces stand for are measured one by one, where they are made.
    is_many = isinstance(value, str) and "{" in value and "\0" not in value
    return value if is_many else _path(value)


# The limits of Linux; beyond them the file system raises an error.
_MAX_PATH, _MAX_NAME = 4095, 255
CLASS_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
# A class or function in a user's package.
ClassPath = Annotated[str, Field(pattern=CLASS_PATH)]
LocalPath = Annotated[str, BeforeValidator(_path), WithJsonSchema({"type": "string"})]
PathPattern = Annotated[str, BeforeValidator(_pattern), WithJsonSchema({"type": "string"})]


def rank_range(ranks: str) -> range:
    """Return the ranks that a validated `ranks:` value names."""
    first, _, last = ranks.partition("-")
    return range(int(first), int(last or first) + 1)


def rank_text(ranks: range) -> str:
    """Return `4` or `0-3`, as `ranks:` says it."""
    return str(ranks.start) if len(ranks) == 1 else f"{ranks.start}-{ranks.stop - 1}"


def size_in_bytes(text: str) -> int:
    """Return the bytes that a size on the command line means. Raises: ValueError."""
    return num_bytes(_size(text))


def num_bytes(size: str) -> int:
    """Return the bytes that a validated size means."""
    number = size.rstrip("BGMTi")
    return round(float(number) * _UNITS[size[len(number) :]])


class Grid(Strict):
    """How the ranks of one module are factored; the product must equal their number.

    `dp` is already resolved: specs in memory and saved specs have its number.
    """

    tp: Places = Field(1, description="Tensor-parallel size: each layer's weights are split.")
    cp: Places = Field(1, description="Context-parallel size: the sequence is split.")
    pp: Places = Field(1, description="Pipeline size: the layers are split into stages.")
    dp: Dp = Field(
        1,
        description="Data-parallel size: the samples are split. `auto`, or -1: what the other "
        "sizes leave of the ranks.",
    )

    @property
    def num_ranks(self) -> int:
        """Number of ranks that the grid fills."""
        return self.tp * self.cp * self.pp * self.dp


class ExpertGrid(Strict):
    """A second factorisation of the ranks of each pipeline stage, for the experts alone.

    The remaining factor is replicas: ep * tp * replicas = tp * cp * dp of the module.
    """

    ep: Places = Field(1, description="Expert-parallel size: the experts of a layer are split.")
    tp: Places = Field(
        1, description="Tensor-parallel size of the experts: the width of each is split."
    )
