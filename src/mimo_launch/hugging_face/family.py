"""The interface of an architecture of transformers, and of a part of a folder that has one.

Decides: the functions of each family; the prefixes of names in the files of a part, and the
settings of the whole model for the part.
Relies on: `folder` for configurations; `spec.layers` for their keys.
Leaves: the functions to one file per architecture, finding families and parts to `registry`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any, Generic, Protocol, TypeVar

from mimo_launch.hugging_face import further_tokens
from mimo_launch.hugging_face.folder import Config, ConfigError, reading_config
from mimo_launch.hugging_face.refusals import Refusals, off
from mimo_launch.hugging_face.runs import Runs
from mimo_launch.spec.hybrid import DeltaNetSizes
from mimo_launch.spec.layers import Moe, Mtp
from mimo_launch.spec.spec import Model, Strict


def moe_keys(**said: Any) -> dict[str, Any]:
    """Return `moe` with these keys, defaults for the others, unchecked; see `Moe.architecture`."""
    return {
        key: said.get(key, each.default)
        for key, each in Moe.model_fields.items()
        if key not in Moe.TRAINING
    }


# Keys with a default, and the property of the model that applies it.
_DERIVED = {
    "kv_heads": "num_kv_heads",
    "head_dim": "head_size",
    "mlp": "mlp_width",
    "projector_mlp": "projector_mlp_width",
}


def value_of(model: Model, key: str) -> Any:
    """Return a model's value for one of its keys, with defaults applied.

    For a section, only the keys that decide what is computed, not how it is computed or trained.
    """
    derived = _DERIVED.get(key, key)
    found = getattr(model, derived if hasattr(model, derived) else key)
    if isinstance(found, Moe | Mtp | DeltaNetSizes):
        return found.architecture()
    return found.model_dump() if isinstance(found, Strict) else found


M = TypeVar("M")


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a file, or consecutive rows of one, that holds one of our segments.

    `num_rows` from `first_row` on are ours (None: all), as in a fused q, k and v. `shape` is the
    shape of the whole tensor in the file where it differs from ours, with the same elements in the
    same order: a convolution [D, C, p, p] is our linear map [D, C * p * p], and sizes of 1 may come
    first. If ours is `stacked`, `shape` is the shape of the stack. The columns of a `transposed`
    tensor are our rows. A tensor `at_least_fp32` is not multiplied by activations, and transformers
    keeps it in fp32. An `optional` tensor may be missing in a file; ours then keeps its initial
    values. With `runs`, our rows are not consecutive.
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

    @property
    def key(self) -> str:
        """A unique name: the name of the tensor, with our rows or entry."""
        if self.stacked is not None:
            return f"{self.name}[{self.stacked.number}, {self.first_row}::{self.stacked.step}]"
        if self.num_rows is not None:
            more = "" if self.runs is None else f", in runs of {self.runs.length}"
            return f"{self.name}[{self.first_row}:{self.first_row + self.num_rows}{more}]"
        return self.name


def layers_at(names: Mapping[str, str]) -> dict[str, Place]:
    """Return the places of weights and biases of layers from `names`, our names first."""
    kinds = ("weight", "bias")
    return {f"{ours}.{kind}": Place(f"{at}.{kind}") for ours, at in names.items() for kind in kinds}


def stacked_expert(layer: str, number: int, part: str, moe: Moe, stream: int) -> Place:
    """Return the place of an expert's weight in a layer that stacks gates above ups, and downs.

    `layer` is the name of a layer's experts; `part` is gate, up or down.
    """
    entry = Stacked(number)
    if part == "down":
        return Place(f"{layer}.down_proj", shape=(moe.experts, stream, moe.width), stacked=entry)
    first = moe.width if part == "up" else 0
    whole = (moe.experts, 2 * moe.width, stream)
    return Place(f"{layer}.gate_up_proj", first, moe.width, shape=whole, stacked=entry)


def rows_of(parts: Mapping[str, int], wanted: str) -> tuple[int, int]:
    """Return the first row and the number of rows of a part. Raises: KeyError."""
    names = list(parts)
    if wanted not in parts:
        raise KeyError(wanted)
    return sum(parts[name] for name in names[: names.index(wanted)]), parts[wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[M]):
    """One architecture as transformers writes it, for our models of type M.

    `model_type`: as in the (sub-)configuration that describes the module.
    `kind`: the kind of our model.
    `not_computed`: settings that our model does not have.
    `random`: settings that, if not 0, change numbers at random in training, such as dropout.
    `keys(config)`: a configuration as keys of `model`. Raises: ConfigError.
    `place(name, model)`: the place of a segment, named without the module. Raises: KeyError.
    `is_ignored(name, model)`: whether a tensor of a file is left out by rule.
    `fits(model)`: whether the architecture can express our model, beyond what `keys` say.
    `config(model)`: the configuration of our model; `vocab` must be a number.
    `architecture`: the class of transformers that loads it.
    `row_width`: the key of its configuration for the width of the rows that it makes, or reads.
    `training(config)`: the training settings of a configuration, as keys of `moe`.
    `of_experts`: for decoders with experts only.
    `other_place(name, model)`: the place in files of other versions; None if it is the same.
    `layers_in_one`: how many of our layers form one layer of the architecture.
    `video(config)`: how it reads videos, as `video` of our model; None if we do not know.
    `has_depths`: whether its files may hold multi-token prediction (see `further_tokens`).
    `norms_patches`: whether the patches of an image pass the last norm of a tower; in some towers
    only the pooling uses it. Applies to a folder of the tower alone, unless `keys` decides.
    `depth_place(name, model)`: the place of a tensor of multi-token prediction that files keep
    apart, None for a depth that they do not hold; without it, depths are layers after the last one.
    """

    model_type: str
    kind: str
    not_computed: Refusals
    keys: Callable[[Config], dict[str, Any]]
    place: Callable[[str, M], Place]
    is_ignored: Callable[[str, M], bool]
    config: Callable[[M], Config]
    fits: Callable[[M], bool] = lambda _: True
    random: tuple[str, ...] = ("attention_dropout",)
    architecture: str = ""
    row_width: str | None = None
    training: Callable[[Config], dict[str, Any]] = lambda _: {}
    of_experts: bool = False
    other_place: Callable[[str, M], Place | None] = lambda *_: None
    layers_in_one: int = 1
    video: Callable[[Config], dict[str, Any] | None] = lambda _: None
    has_depths: bool = False
    norms_patches: bool = True
    depth_place: Callable[[str, M], Place | None] | None = None

    @property
    def refusals(self) -> Refusals:
        """All settings of its configurations that are refused."""
        return Refusals((*self.not_computed.rules, *map(off, self.random)))


PROJECTOR = "projector."
# The divisor for quantized inputs of a matrix in FP8; inputs are not quantized here.
SCALE_OF_INPUTS = ".activation_scale"


class Whole(Protocol):
    """A model of transformers that holds several parts, or one part under different names.

    `families` are the families of its parts, `refusals` the refused settings around them;
    `architecture` is the class of transformers that `export` writes, empty if it writes none.
    """

    @property
    def model_type(self) -> str:
        """Return the type of the whole."""

    @property
    def architecture(self) -> str:
        """Return the class of transformers."""

    @property
    def families(self) -> tuple[Family[Any], ...]:
        """Return the families of its parts."""

    @property
    def refusals(self) -> Refusals:
        """Return the refused settings around the parts."""

    def part(self, config: Config, kind: str) -> "Part[Any]":
        """Return the part for a kind of module. Raises: NoSuchPart, ConfigError."""


class NoSuchPart(ConfigError):
    """A folder holds no module of a kind; `setting` is why, such as `model_type: gpt2`."""

    def __init__(self, setting: str) -> None:
        super().__init__(setting)
        self.setting = setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[M]):
    """One module of a folder, of one family.

    `prefixes`: pairs of a prefix in the files and the prefix that replaces it in the family's
    names; transformers writes the first pair today. `elsewhere`: prefixes of other parts.
    `projector`: the places of the projector in the files, by our tensor; if empty, ours keeps its
    initial values. `fixed`: keys of `model` that the whole model decides; `refused`: settings of
    the whole model that we cannot compute. `may_end_early`: a module may take only the first
    layers. `reads_videos`: how the whole model reads videos, as `video` of our model. `untied`: the
    files hold an output layer that differs from the embedding, though the configuration ties both.
    """

    family: Family[M]
    config: Config
    prefixes: tuple[tuple[str, str], ...] = (("", ""),)
    elsewhere: tuple[str, ...] = ()
    projector: Mapping[str, Place] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    may_end_early: bool = False
    reads_videos: Mapping[str, Any] | None = None
    untied: bool = False

    def not_computed(self) -> tuple[str, ...]:
        """Return the settings that our model does not have, as `key: value`.

        Raises: ConfigError.
        """
        with reading_config():
            return (*self.refused, *self.family.refusals(self.config))

    def keys(self) -> dict[str, Any]:
        """Return the settings of the folder as keys of `model`. Raises: ConfigError."""
        with reading_config():
            keys = {**self.family.keys(self.config), **self.fixed}
        return keys | {"tied": False} if self.untied else keys

    def training(self) -> dict[str, Any]:
        """Return the training settings of the folder, as keys of `moe`. Raises: ConfigError.

        They are not part of the model, so a spec may have other values.
        """
        with reading_config():
            return self.family.training(self.config)

    def video(self) -> dict[str, Any] | None:
        """Return how the folder's model reads videos, as our `video`. Raises: ConfigError.

        A spec may omit `video`; then no video is read.
        """
        if self.reads_videos is not None:
            return dict(self.reads_videos)
        with reading_config():
            return self.family.video(self.config)

    def place(self, name: str, model: M) -> Place | None:
        """Return the place of our segment, None if it keeps its initial values by rule.

        `name` excludes the module. Raises: KeyError for a name that the family does not have.
        """
        if name in self.projector:
            return self.projector[name]
        if name.startswith(further_tokens.OURS):
            return self._place_of_depth(name, model)
        try:
            return self.family.place(name, model)
        except KeyError:
            if name.startswith(PROJECTOR):
                return None
            raise

    def _place_of_depth(self, name: str, model: Any) -> Place | None:
        """Return the place of a tensor of multi-token prediction, None if files lack it."""
        if not self.family.has_depths:
            return None
        if self.family.depth_place is not None:
            return self.family.depth_place(name, model)
        ours, theirs = further_tokens.as_layer(name, model)
        return self.family.place(ours, model) if theirs is None else Place(theirs)

    def copies(self, model: Any) -> Mapping[str, str]:
        """Return the tensors of files that repeat another one, with our name of the latter."""
        if not self.family.has_depths or self.family.depth_place is not None:
            return {}
        return {name: ours for ours, name in further_tokens.copies(model)}

    def depths_among(self, names: Collection[str], model: Any) -> int:
        """Return how many depths of multi-token prediction `names`, of the family, contain."""
        ours = (f"{further_tokens.OURS}{depth}.project.weight" for depth in count())
        places = takewhile(bool, (self._place_of_depth(each, model) for each in ours))
        return sum(1 for _ in takewhile(lambda at: at is not None and at.name in names, places))

    def inner_name(self, name: str) -> str | None:
        """Return the family's name for a tensor of the files; None if it is of another part."""
        for prefix, inner in sorted(self.prefixes, key=lambda pair: -len(pair[0])):
            if name.startswith(prefix) and not name.startswith(self.elsewhere):
                return inner + name.removeprefix(prefix)
        return None

    def file_name(self, inner: str) -> str:
        """Return the name in files written today for a name of the family, or of the projector."""
        found = [pair for pair in self.prefixes if inner.startswith(pair[1])]
        prefix, stands_for = max(found, key=lambda pair: len(pair[1]))
        return prefix + inner.removeprefix(stands_for)

    def is_ignored(self, name: str, model: M) -> bool:
        """Return whether a tensor of the files is left out by rule."""
        inner = self.inner_name(name)
        if inner is None:
            return name.startswith(self.elsewhere)
        if inner.endswith(SCALE_OF_INPUTS):
            return True
        return self.family.is_ignored(inner, model) or inner in self.copies(model)


@dataclass(frozen=True, slots=True)
class Alone(Generic[M]):
    """How a folder names its only family; it may hold parts that are left out.

    The fields are as in `Part`.
    """

    family: Family[M]
    prefixes: tuple[tuple[str, str], ...]
    elsewhere: tuple[str, ...] = ()
    may_end_early: bool = False

    def part(self, config: Config, kind: str) -> Part[M]:
        """Return the only part of a folder. Raises: NoSuchPart."""
        if kind != self.family.kind:
            raise NoSuchPart(f"model_type: {self.family.model_type}")
        return Part(
            family=self.family,
            config=config,
            prefixes=self.prefixes,
            elsewhere=self.elsewhere,
            may_end_early=self.may_end_early,
        )
