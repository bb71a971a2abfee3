"""The part of a folder that is one module of ours.

Decides: how the names in its files begin, and what the whole model says of the part.
Relies on: the family of the part for all else.
Leaves: which parts a folder has to `registry`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from mimo_launch.hugging_face.family import Family, M, Place
from mimo_launch.hugging_face.folder import Config, ConfigError, reading_config

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
