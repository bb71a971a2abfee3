"""What whole models have in common whose parts lie in sections of their own.

Decides: the parts of their folders, and that the tensors of each are none of the others.
Relies on: families of modules for the parts.
Leaves: sections, prefixes and settings to one file per family.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mimo_launch.hugging_face.family import Family, NoSuchPart, Part
from mimo_launch.hugging_face.folder import Config, section
from mimo_launch.hugging_face.refusals import Refusals

Keys = tuple[str, ...]
Prefixes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedPart:
    """A module of a whole: its family, the keys down to its configuration, and its prefixes.

    `around(config)` are settings that the section around its own decides, `videos(config)` how the
    model of that section reads videos, as `video` of ours.
    """

    family: Family[Any]
    where: Keys
    prefixes: Prefixes
    around: Callable[[Config], Config] = lambda _: {}
    videos: Callable[[Config], Mapping[str, Any] | None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedParts:
    """A family of whole models: its parts, and the class of transformers that loads them.

    `left_out` are prefixes of parts that are no modules of ours, `others` the types of such parts
    by the kind of a module.
    """

    model_type: str
    architecture: str
    parts: tuple[NestedPart, ...]
    refusals: Refusals
    left_out: Keys = ()
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def families(self) -> tuple[Family[Any], ...]:
        """The families of its parts."""
        return tuple(each.family for each in self.parts)

    @property
    def where(self) -> dict[str, Keys]:
        """The keys down to the configuration of each part, by its kind."""
        return {each.family.kind: each.where for each in self.parts}

    def part(self, config: Config, kind: str) -> Part[Any]:
        """Return the part of a kind. Raises: NoSuchPart."""
        found = next((each for each in self.parts if each.family.kind == kind), None)
        if found is None:
            raise NoSuchPart(self.others.get(kind, f"model_type: {self.model_type}"))
        *outer, last = found.where
        for key in outer:
            config = section(config, key)
        others = (prefix for each in self.parts if each != found for prefix, _ in each.prefixes)
        return Part(
            family=found.family,
            config={**section(config, last), **found.around(config)},
            prefixes=found.prefixes,
            elsewhere=(*others, *self.left_out),
            reads_videos=found.videos(config),
        )
