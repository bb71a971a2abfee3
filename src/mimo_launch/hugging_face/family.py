"""What there is to know of one architecture of transformers, and the part of a folder that has it.

Decides: the questions that each family answers; how the names in the files of a part begin, and
what the whole model says of the part.
Relies on: `folder` for what a configuration is; `spec.language` for the keys of experts.
Leaves: the answers to one file per architecture, finding families and parts to `registry`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from mimo_launch.hugging_face.folder import Config, ConfigError, reading_config
from mimo_launch.spec.language import Moe


def moe_keys(**said: Any) -> dict[str, Any]:
    """Return `moe` of a model of which `said` is known, as `Moe.architecture` does, unchecked."""
    return {
        key: said.get(key, each.default)
        for key, each in Moe.model_fields.items()
        if key not in Moe.TRAINING
    }


M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a file, or consecutive rows of one, that holds a segment of ours.

    `num_rows` from `first_row` on are ours (None: all of the tensor), as of a fused q, k and v.
    `shape` is that of the whole tensor there, where it is not ours: the same elements in the same
    order, as of a convolution [D, C, p, p] that is our linear map [D, C * p * p]. What is written
    `at_least_fp32` is no weight of a product, and transformers keeps it in fp32.
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
    `keys(config)`: what a configuration says, in keys of `model`. Raises: ConfigError.
    `place(name, model)`: where a segment of ours is; `name` is less the module. Raises: KeyError.
    `is_ignored(name, model)`: whether a tensor of a file is left out by rule.
    `fits(model)`: whether the architecture can say what our model is.
    `config(model)`: the configuration that says it; `vocab` must be a number.
    `architecture`: the class of transformers that loads it.
    `training(config)`: what a configuration says of how it is trained, in keys of `moe`.
    """

    model_type: str
    kind: str
    not_computed: Callable[[Config], Iterator[str]]
    keys: Callable[[Config], dict[str, Any]]
    place: Callable[[str, M], Place]
    is_ignored: Callable[[str, M], bool]
    fits: Callable[[M], bool]
    config: Callable[[M], Config]
    architecture: str = ""
    training: Callable[[Config], dict[str, Any]] = lambda _: {}


def differs(config: Config, key: str, only: object) -> bool:
    """Return whether a configuration says another value than the one that is computed."""
    return bool(config.get(key, only) != only)


PROJECTOR = "projector."


class NoSuchPart(ConfigError):
    """A folder holds no module of a kind; `setting` says why, as `model_type: gpt2`."""

    def __init__(self, setting: str) -> None:
        super().__init__(setting)
        self.setting = setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[M]):
    """One module of a folder, of one family.

    `prefixes`: how names begin in the files, and what stands for it in the family's names; the
    first pair is what transformers writes today. `elsewhere`: how names of other parts begin.
    `projector`: by layer of ours, what the projector is called; a part without one leaves ours as
    it is. `fixed`: keys of `model` that the whole decides, and `refused` settings of it that are
    not computed. `may_end_early`: a module may take the first layers alone.
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
        """Return what the folder says, in keys of `model`. Raises: ConfigError."""
        with reading_config():
            return {**self.family.keys(self.config), **self.fixed}

    def training(self) -> dict[str, Any]:
        """Return what the folder says of how it is trained, in keys of `moe`. Raises: ConfigError.

        It is no part of the model, so a spec may say something else.
        """
        with reading_config():
            return self.family.training(self.config)

    def place(self, name: str, model: M) -> Place | None:
        """Return where a segment of ours is, None if it keeps its initial values by rule.

        `name` is less the module. Raises: KeyError for one that the family does not have.
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
        """Return what the family calls a tensor of the files; None if it is of another part."""
        for prefix, inner in sorted(self.prefixes, key=lambda pair: -len(pair[0])):
            if name.startswith(prefix) and not name.startswith(self.elsewhere):
                return inner + name.removeprefix(prefix)
        return None

    def file_name(self, inner: str) -> str:
        """Return what transformers writes today for a name of the family, or of the projector."""
        found = [pair for pair in self.prefixes if inner.startswith(pair[1])]
        prefix, stands_for = max(found, key=lambda pair: len(pair[1]))
        return prefix + inner.removeprefix(stands_for)

    def is_ignored(self, name: str, model: M) -> bool:
        """Return whether a tensor of the files is left out by rule."""
        inner = self.inner_name(name)
        if inner is None:
            return name.startswith(self.elsewhere)
        return self.family.is_ignored(inner, model)
