"""The interface of an architecture of transformers, and of the part of a folder that has one.

Decides: the functions of each family; the prefixes of names in the files of a part, and the
settings of the whole model for the part.
Relies on: `folder` for configurations; `spec.language_models` for the keys of experts.
Leaves: the functions to one file per architecture, finding families and parts to `registry`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from mimo_launch.hugging_face.folder import Config, ConfigError, reading_config
from mimo_launch.spec.language_models import Moe
from mimo_launch.spec.spec import Model, Strict


def moe_keys(**said: Any) -> dict[str, Any]:
    """Return `moe` with some keys and the defaults of others, unchecked; see `Moe.architecture`."""
    return {
        key: said.get(key, each.default)
        for key, each in Moe.model_fields.items()
        if key not in Moe.TRAINING
    }


# Keys that have a default, with the property of the model that applies it.
_DERIVED = {"kv_heads": "num_kv_heads", "head_dim": "head_size", "mlp": "mlp_width"}


def value_of(model: Model, key: str) -> Any:
    """Return a model's value for one of its keys, with defaults applied.

    For `moe` that is what experts compute, not how they are trained.
    """
    derived = _DERIVED.get(key, key)
    found = getattr(model, derived if hasattr(model, derived) else key)
    if isinstance(found, Moe):
        return found.architecture()
    return found.model_dump() if isinstance(found, Strict) else found


M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a file, or consecutive rows of one, that holds a segment of ours.

    `num_rows` from `first_row` on are ours (None: all), as in a fused q, k and v. `shape` is that
    of the whole tensor in the file where it differs from ours, with the same elements in the same
    order: a convolution [D, C, p, p] is our linear map [D, C * p * p], and sizes of 1 may stand in
    front. A tensor `at_least_fp32` is
    not multiplied with activations, and transformers keeps it in fp32.
    """

    name: str
    first_row: int = 0
    num_rows: int | None = None
    shape: tuple[int, ...] | None = None
    at_least_fp32: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[M]):
    """One architecture as transformers writes it, for our models of type M.

    `model_type`: that of the (sub-)configuration that describes the module.
    `kind`: of our model.
    `not_computed(config)`: settings that our model does not have, as `key: value`.
    `keys(config)`: a configuration as keys of `model`. Raises: ConfigError.
    `place(name, model)`: the place of a segment, named without the module. Raises: KeyError.
    `is_ignored(name, model)`: whether a tensor of a file is left out by rule.
    `fits(model)`: whether the architecture can express our model, beyond what `keys` say.
    `config(model)`: the configuration of our model; `vocab` must be a number.
    `architecture`: the class of transformers that loads it.
    `row_width`: the key of its configuration for the width of the rows that it makes, or reads.
    `training(config)`: the training settings of a configuration, as keys of `moe`.
    """

    model_type: str
    kind: str
    not_computed: Callable[[Config], Iterator[str]]
    keys: Callable[[Config], dict[str, Any]]
    place: Callable[[str, M], Place]
    is_ignored: Callable[[str, M], bool]
    config: Callable[[M], Config]
    fits: Callable[[M], bool] = lambda _: True
    architecture: str = ""
    row_width: str | None = None
    training: Callable[[Config], dict[str, Any]] = lambda _: {}


def differs(config: Config, key: str, only: object) -> bool:
    """Return whether a setting differs from the only value that we compute."""
    return bool(config.get(key, only) != only)


PROJECTOR = "projector."


class NoSuchPart(ConfigError):
    """A folder holds no module of a kind; `setting` says why, such as `model_type: gpt2`."""

    def __init__(self, setting: str) -> None:
        super().__init__(setting)
        self.setting = setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[M]):
    """One module of a folder, of one family.

    `prefixes`: pairs of a prefix in the files and the one in the family's names that it stands for;
    transformers writes the first pair today. `elsewhere`: prefixes of other parts. `projector`: the
    names of the projector in the files, by our layer; if empty, ours keeps its initial values.
    `fixed`: keys of `model` that the whole model decides; `refused`: settings of the whole model
    that we cannot compute. `may_end_early`: a module may take only the first layers.
    """

    family: Family[M]
    config: Config
    prefixes: tuple[tuple[str, str], ...] = (("", ""),)
    elsewhere: tuple[str, ...] = ()
    projector: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    may_end_early: bool = False

    def not_computed(self) -> tuple[str, ...]:
        """Return the settings that our model does not have, as `key: value`.

        Raises: ConfigError.
        """
        with reading_config():
            return (*self.refused, *self.family.not_computed(self.config))

    def keys(self) -> dict[str, Any]:
        """Return the settings of the folder as keys of `model`. Raises: ConfigError."""
        with reading_config():
            return {**self.family.keys(self.config), **self.fixed}

    def training(self) -> dict[str, Any]:
        """Return the training settings of the folder, as keys of `moe`. Raises: ConfigError.

        They are no part of the model, so a spec may have other values.
        """
        with reading_config():
            return self.family.training(self.config)

    def place(self, name: str, model: M) -> Place | None:
        """Return the place of our segment, None if it keeps its initial values by rule.

        `name` is without the module. Raises: KeyError for one that the family does not have.
        """
        layer, _, kind = name.rpartition(".")
        if layer in self.projector:
            return Place(f"{self.projector[layer]}.{kind}")
        try:
            return self.family.place(name, model)
        except KeyError:
            if name.startswith(PROJECTOR):
                return None
            raise

    def inner_name(self, name: str) -> str | None:
        """Return the family's name of a tensor of the files; None if it is of another part."""
        for prefix, inner in sorted(self.prefixes, key=lambda pair: -len(pair[0])):
            if name.startswith(prefix) and not name.startswith(self.elsewhere):
                return inner + name.removeprefix(prefix)
        return None

    def file_name(self, inner: str) -> str:
        """Return the name in files of today for a name of the family, or of the projector."""
        found = [pair for pair in self.prefixes if inner.startswith(pair[1])]
        prefix, stands_for = max(found, key=lambda pair: len(pair[1]))
        return prefix + inner.removeprefix(stands_for)

    def is_ignored(self, name: str, model: M) -> bool:
        """Return whether a tensor of the files is left out by rule."""
        inner = self.inner_name(name)
        if inner is None:
            return name.startswith(self.elsewhere)
        return self.family.is_ignored(inner, model)
