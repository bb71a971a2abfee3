"""Where our tensors lie in the files of a family: a table of names and of named kinds of mapping.

Decides: the kinds: another name, `Rows` of a stack, another shape (`Reshaped`), an entry of a stack
of experts (`ExpertStack`), rows of each head in turn (`HeadRows`), `InTurn` for layers of two
kinds; and which tensors of files are `Dropped`. Each is a `Place`, which is read and written.
Relies on: nothing.
Leaves: the tables to the families; reading to `checkpoint`, writing to `export`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import prod
from typing import Any

from mimo_launch.diag.frozen import frozen

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@frozen
class Stacked:
    """The place of an expert's tensor in a stack for several experts: it is entry `number`.

    If the entry is `transposed`, its columns are our rows; one row in `step` belongs to our tensor.
    """

    number: int
    step: int = 1
    transposed: bool = False

    def shape_in(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of our tensor."""
        rows, *rest = whole[:0:-1] if self.transposed else whole[1:]
        return (rows // self.step, *rest)

    def read(self, whole: Any, first_row: int, box: Sequence[range]) -> Any:
        """Return a box of our tensor, read as slices of `whole`; `first_row` is our first row.

        `whole` may be a tensor, or a tensor of a file that takes slices without steps.
        """
        rows, *rest = box
        last = first_row + self.step * rows.start + self.step * (len(rows) - 1) + 1
        there = [slice(first_row + self.step * rows.start, max(last, 0))]
        there += [slice(each.start, each.stop) for each in rest]
        if self.transposed:
            there.reverse()
        entry = whole[(slice(self.number, self.number + 1), *there)][0]
        return (entry.mT if self.transposed else entry)[:: self.step]


@frozen
class Runs:
    """The places of our rows in a tensor: `length` rows of every `step`, from our first row on.

    This is the case where each head in turn has its queries, keys and values together.
    """

    length: int
    step: int

    def whole(self, num_rows: int) -> int:
        """Return how many rows a tensor has that contains `num_rows` of our rows."""
        return num_rows // self.length * self.step

    def pieces(self, first_row: int, rows: range) -> Iterator[tuple[range, slice]]:
        """Yield consecutive ones of our rows, and their place; ours begin at `first_row`."""
        for run in range(rows.start // self.length, -(-rows.stop // self.length)):
            begin = run * self.length
            ours = range(max(rows.start, begin), min(rows.stop, begin + self.length))
            there = first_row + run * self.step + ours.start - begin
            yield ours, slice(there, there + len(ours))


@frozen
class Place:
    """A tensor of a file, or consecutive rows of one, that holds one of our segments.

    `num_rows` from `first_row` on are ours (None: all), as in a fused q, k and v. `shape` is the
    shape of the whole tensor in the file where it differs from ours, with the same elements in the
    same order: a convolution [D, C, p, p] is our linear map [D, C * p * p], sizes of 1 may come
    first, and a single number may have no dimension; of a table over a `grid`, the first two
    dimensions are our rows. If ours is `stacked`, `shape` is the shape of the stack. The columns of
    a `transposed` tensor are our rows. A tensor `at_least_fp32` is not multiplied by activations,
    and transformers keeps it in fp32. An `optional` tensor may be missing in a file; ours then
    keeps its initial values. With `runs`, our rows are not consecutive. With `channels`, the
    numbers of a row alternate by channel in the file, while ours are one channel after the other.
    """

    name: str
    first_row: int = 0
    num_rows: int | None = None
    shape: tuple[int, ...] | None = None
    at_least_fp32: bool = False
    stacked: Stacked | None = None
    transposed: bool = False
    optional: bool = False
    runs: Runs | None = None
    grid: bool = False
    channels: int = 0

    def apart(self, held: Any) -> Any:
        """Return rows of the file with one channel after the other."""
        return held.unflatten(1, (-1, self.channels)).mT.flatten(1)

    def alternating(self, ours: Any) -> Any:
        """Return our rows with alternating channels."""
        return ours.unflatten(1, (self.channels, -1)).mT.flatten(1)

    @property
    def key(self) -> str:
        """A unique name: the name of the tensor, with our rows or entry."""
        if self.stacked is not None:
            return f"{self.name}[{self.stacked.number}, {self.first_row}::{self.stacked.step}]"
        if self.num_rows is not None:
            more = "" if self.runs is None else f", in runs of {self.runs.length}"
            return f"{self.name}[{self.first_row}:{self.first_row + self.num_rows}{more}]"
        return self.name


# Returns the place of a tensor from a model and the numbers in our name, such as layer and expert.
Found = Callable[..., Place]
Entry = str | Place | Found
Sizes = Callable[[Any], Sequence[int]]


@frozen
class Rows:
    """Part `index` of several that are stacked by rows; `sizes` are the rows of each part.

    `shape` is the shape of the stack, if it differs from ours.
    """

    name: str
    index: int
    sizes: Sizes
    shape: Sizes | None = None

    def __call__(self, model: Any, *_numbers: int) -> Place:
        """Return the place in a model."""
        each = self.sizes(model)
        shape = None if self.shape is None else tuple(self.shape(model))
        return Place(self.name, sum(each[: self.index]), each[self.index], shape)


def fused(
    name: str, ours: Sequence[str], sizes: Sizes, shape: Sizes | None = None
) -> dict[str, Rows]:
    """Return the places of our tensors or layers that a file stacks by rows in one tensor."""
    return {each: Rows(name, index, sizes, shape) for index, each in enumerate(ours)}


@frozen
class HeadRows:
    """Part `index` of several, with rows alternating head by head; `sizes` are of one head."""

    name: str
    index: int
    sizes: Sizes
    heads: Callable[[Any], int]

    def __call__(self, model: Any, *_numbers: int) -> Place:
        """Return the place in a model."""
        each = self.sizes(model)
        length, runs = each[self.index], Runs(each[self.index], sum(each))
        return Place(self.name, sum(each[: self.index]), length * self.heads(model), runs=runs)


@frozen
class Reshaped:
    """A tensor of another shape, with the same elements in the same order."""

    name: str
    shape: Sizes
    grid: bool = False

    def __call__(self, model: Any, *_numbers: int) -> Place:
        """Return the place in a model."""
        return Place(self.name, shape=tuple(self.shape(model)), grid=self.grid)


@frozen
class ExpertStack:
    """A weight of an expert in a stack of a layer's experts: gates and ups together, and downs.

    `layer` is the name of the experts in the files, `part` is gate, up or down; `names` are those
    of both stacks. Gates come above ups; if they are `interleaved`, rows of both alternate,
    matrices are transposed, and a `bias` is in a separate stack. If they are `turned`, matrices are
    transposed, too.
    """

    layer: str
    part: str
    interleaved: bool = False
    bias: bool = False
    names: tuple[str, str] = ("gate_up_proj", "down_proj")
    turned: bool = False

    @property
    def name(self) -> str:
        """The name of the stack in the files."""
        return f"{self.layer}.{self.names[self.part == 'down']}{'_bias' * self.bias}"

    def __call__(self, model: Any, *numbers: int) -> Place:
        """Return the place in a model; the last number is the expert's. Raises: KeyError."""
        if (moe := model.moe) is None:
            raise KeyError(self.part)
        is_down = self.part == "down"
        turned = self.turned or (self.interleaved and not self.bias)
        outputs, inputs = (model.hidden, moe.width) if is_down else (2 * moe.width, model.hidden)
        sizes = (outputs,) if self.bias else (inputs, outputs) if turned else (outputs, inputs)
        after = 0 if self.part != "up" else 1 if self.interleaved else moe.width
        step = 2 if self.interleaved and not is_down else 1
        num_rows = None if is_down or self.interleaved else moe.width
        entry = Stacked(numbers[-1], step, transposed=turned)
        return Place(self.name, after, num_rows, (moe.experts, *sizes), stacked=entry)


@frozen
class Inside:
    """An entry with a name in the files that begins with `before`."""

    before: str
    entry: Entry

    def __call__(self, model: Any, *numbers: int) -> Place:
        """Return the place in a model. Raises: KeyError."""
        place = placed(self.entry, model, *numbers)
        return replace(place, name=self.before + place.name)


@frozen
class InTurn:
    """Names for layers of different kinds that follow each other in turn."""

    names: tuple[str, ...]

    def __call__(self, _model: Any, layer: int, *_numbers: int) -> Place:
        """Return the place in a layer."""
        return Place(self.names[layer % len(self.names)])


@frozen
class Dropped:
    """Tensors of files that a family leaves out: names like `pattern`, in some models only."""

    pattern: str
    when: Callable[[Any], bool] = lambda _: True

    def __call__(self, name: str, model: Any) -> bool:
        """Return whether a tensor is one of them."""
        return fnmatchcase(name, self.pattern) and self.when(model)


@frozen
class Beyond:
    """Layers of files after the last one that is used; `before` precedes the number of a layer."""

    before: str
    layers: Callable[[Any], int] = lambda model: model.layers

    def __call__(self, name: str, model: Any) -> bool:
        """Return whether a tensor is of such a layer."""
        number = name.removeprefix(self.before).partition(".")[0]
        is_one = name.startswith(self.before) and number.isdecimal()
        return is_one and int(number) >= self.layers(model)


@frozen
class Tensors:
    """A table of names, ours first; a `*` matches a number, which is the same in both names.

    Our name is a tensor, or a layer if its weight and bias have the same names in the files.
    `layers_in_one` of our layers form a layer of the files.
    """

    table: Mapping[str, Entry]
    dropped: tuple[Callable[[str, Any], bool], ...] = ()
    layers_in_one: int = 1

    def place(self, name: str, model: Any) -> Place:
        """Return the place of our tensor, by its name without the module. Raises: KeyError."""
        ours = _NUMBER.sub("*", name)
        layer, _, kind = ours.rpartition(".")
        entry, after = (self.table[ours], "") if ours in self.table else (self.table[layer], kind)
        numbers = [int(each) for each in _NUMBER.findall(name)]
        place = placed(entry, model, *numbers)
        theirs = f"{place.name}.{after}" if after else place.name
        if name.startswith("layers."):
            numbers[0] //= self.layers_in_one
        for each in numbers:
            theirs = theirs.replace("*", str(each), 1)
        return replace(place, name=theirs)

    def may_have(self, name: str) -> bool:
        """Return whether our tensor, by its name without the module, is in the table."""
        ours = _NUMBER.sub("*", name)
        return ours in self.table or ours.rpartition(".")[0] in self.table

    def is_dropped(self, name: str, model: Any) -> bool:
        """Return whether a tensor of a file is left out by rule."""
        return any(rule(name, model) for rule in self.dropped)

    def __or__(self, table: Mapping[str, Entry]) -> "Tensors":
        """Return these names with others added, which take precedence."""
        return replace(self, table={**self.table, **table})


def placed(entry: Entry, model: Any, *numbers: int) -> Place:
    """Return the place that an entry of a table means in a model. Raises: KeyError."""
    if isinstance(entry, Place):
        return entry
    return Place(entry) if isinstance(entry, str) else entry(model, *numbers)


def in_layers(before: str, names: Mapping[str, Entry], ours: str = "layers.*.") -> dict[str, Entry]:
    """Return names inside layers as names of a module; names in the files begin with `before`."""
    return {
        f"{ours}{name}": before + entry if isinstance(entry, str) else Inside(before, entry)
        for name, entry in names.items()
    }


def layers_at(names: Mapping[str, str]) -> dict[str, Place]:
    """Return the places of weights and biases of layers from `names`, our names first."""
    kinds = ("weight", "bias")
    return {f"{ours}.{kind}": Place(f"{at}.{kind}") for ours, at in names.items() for kind in kinds}


# The names of the embedding and of the output layer in the files of any language model.
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# All that have a row for each word, also the table of per-layer embeddings.
PER_LAYER_TABLE = "model.embed_tokens_per_layer.weight"
OF_WORDS = (EMBEDDING, HEAD, PER_LAYER_TABLE)
MLP = ("gate", "up", "down")
# The parts of attention that many towers fuse.
QKV = tuple(f"attention.{x}" for x in "qkv")


def fused_qkv(name: str) -> dict[str, Rows]:
    """Return the places of queries, keys and values of a tower in one tensor."""
    return fused(name, QKV, lambda model: [model.hidden] * 3)


def patches(name: str, *, in_time: bool = False) -> Reshaped:
    """Return the place of an embedding of patches, which files hold as a convolution.

    `in_time`: the convolution is over videos, not images.
    """

    def shape(model: Any) -> tuple[int, ...]:
        sides = (*((model.temporal_patch,) if in_time else ()), model.patch, model.patch)
        return (model.hidden, model.channels, *sides)

    return Reshaped(name, shape)


def positions(name: str, tokens: int = 0) -> Reshaped:
    """Return the place of a table of positions with `tokens` entries before the patches."""
    return Reshaped(name, lambda x: (1, tokens + prod(x.image or (0, 0)), x.hidden))
