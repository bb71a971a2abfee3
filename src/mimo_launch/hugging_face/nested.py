"""Whole models of any number of modules, each with its own section: omni models.

Decides: the parts of their folders, and that each tensor belongs to one part or to none of ours;
which of them an export may copy from the folder that language came from.
Relies on: families of modules for the parts.
Leaves: names, sections and settings to one file per family.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.family import Family, Prefixes, Video
from mimo_launch.hugging_face.folder import Config, section
from mimo_launch.hugging_face.part import NoSuchPart, Part
from mimo_launch.hugging_face.refusals import Refusals
from mimo_launch.hugging_face.wholes import Keys, Models, Tokens, equal


@frozen(kw_only=True)
class Nested:
    """A module of a whole model: its family, the keys to its configuration, and its prefixes.

    `around(config)` are settings that the enclosing section decides; `videos` reads how the model
    of that section reads videos.
    """

    family: Family
    where: Keys
    prefixes: Prefixes
    around: Callable[[Config], Config] = lambda _: {}
    videos: Video | None = None


@frozen(kw_only=True)
class NestedWhole:
    """A family of whole models: its parts, and the class of transformers that loads them.

    `left_out` are prefixes of parts that are not our modules, `others` the types of such parts by
    kind of module. `config_of` makes the configuration of modules, by kind, and of the tokens of
    their rows. Without modules of all kinds in `needs`, a folder is only written if the rest can be
    copied from one of this type.
    """

    model_type: str
    architecture: str
    parts: tuple[Nested, ...]
    refusals: Refusals
    left_out: Keys = ()
    others: Mapping[str, str] = field(default_factory=dict)
    config_of: Callable[[Mapping[str, Any], Tokens], Config] | None = None
    needs: frozenset[str] = frozenset({"decoder"})
    rank: int = 0
    published: tuple[str, ...] = ()
    notes: str = ""

    @property
    def families(self) -> tuple[Family, ...]:
        """The families of its parts."""
        return tuple(each.family for each in self.parts)

    @property
    def names(self) -> tuple[Prefixes, ...]:
        """The prefixes of its parts."""
        return tuple(each.prefixes for each in self.parts)

    def lacks(self, models: Models) -> bool:
        """Return whether a folder of these modules alone is not complete."""
        return not self.needs <= models.keys()

    def part(self, config: Config, kind: str) -> Part:
        """Return the part of a kind. Raises: NoSuchPart."""
        found = next((each for each in self.parts if each.family.kind == kind), None)
        if found is None:
            raise NoSuchPart(self.others.get(kind, f"model_type: {self.model_type}"))
        refused = tuple(self.refusals(config))
        *outer, last = found.where
        for key in outer:
            config = section(config, key)
        others = (prefix for each in self.parts if each != found for prefix, _ in each.prefixes)
        return Part(
            family=found.family,
            config={**section(config, last), **found.around(config)},
            prefixes=found.prefixes,
            elsewhere=(*others, *self.left_out),
            refused=refused,
            reads_videos=None if found.videos is None else found.videos.read(config),
        )

    def made_of(self, models: Models, tokens: Tokens) -> tuple[Config, dict[str, Keys]] | None:
        """Return the configuration of a whole made of our modules, and the keys to its parts."""
        of_kind = {each.family.kind: each.family for each in self.parts}
        if self.config_of is None or "decoder" not in models or models.keys() - of_kind.keys():
            return None
        if not all(equal((of_kind[kind],), model) for kind, model in models.items()):
            return None
        where = {each.family.kind: each.where for each in self.parts}
        return self.config_of(models, tokens), where
