"""Says which key, where and with which value, an unknown one was meant to be.

Decides: that the value is kept, in our spelling of it; that a word with several meanings, or none
here, gets words instead of a line.
Relies on: `synonyms` for the words of other trainers, `places` for our own in a wrong section,
`meant` for values.
Leaves: misspelt keys to `findings`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from mimo_launch.diag.diagnostic import YamlPath
from mimo_launch.spec.base import AXES, LANGUAGE, field_schema, leaf_adapter, models_in
from mimo_launch.spec.meant import meant
from mimo_launch.spec.places import ANY, field_at, in_modules, places_of, value_at
from mimo_launch.spec.synonyms import Synonym, synonym
from mimo_launch.spec.wording import expected, flow, listing

# Longer values are renamed, not repeated.
_MOST_SHOWN = 80


class Renamed(NamedTuple):
    """Help for an unknown key, and the paths that it may have been meant for."""

    help: str
    targets: tuple[YamlPath, ...] = ()


def renamed(path: YamlPath, value: Any, data: Any) -> Renamed | None:
    """Return what to write in place of an unknown key; None if it is no word of anybody."""
    section, word = path[:-1], str(path[-1])
    known = synonym(str(section[-1]) if section else "", word)
    if known is not None and known.note:
        return Renamed(known.note)
    if known is None:
        target, known = _free_place(section, word, value, data), Synonym()
    else:
        # In the section of its synonym, or where it belongs.
        pattern: YamlPath = tuple(known.key.split("."))
        places = [(*section, pattern[-1]), *_in_module(pattern, section)]
        target = next((each for each in places if field_at(each, data) is not None), None)
    if target is not None and section[: len(target)] == target:
        return None  # The word means the section that it stands in.
    field = None if target is None else field_at(target, data)
    if target is not None and field is not None:
        return Renamed(_Renaming(path, value, data, target, field, known).help(), (target,))
    *above, key = known.key.split(".")
    if ANY not in above:
        return None
    inside = "".join(f" under `{each}`" for each in above[2:][-1:])
    return Renamed(
        f"each module has its own: write `{key}`{inside} of each module that it is meant for"
    )


def _free_place(section: YamlPath, key: str, value: Any, data: Any) -> YamlPath | None:
    """Return the nearest place that has a key of this name, free, for such a value."""
    nearest: list[YamlPath] = []
    most = 0
    for pattern in places_of(key.replace("-", "_")):
        for path in _in_module(pattern, section):
            field = field_at(path, data)
            if field is None or value_at(path, data) is not None or not _takes(field, value):
                continue
            same = [one == other for one, other in zip(path, section, strict=False)]
            shared = (*same, False).index(False)
            if shared > most:
                nearest, most = [], shared
            if shared == most:
                nearest.append(path)
    return nearest[0] if len(nearest) == 1 else None


def _in_module(pattern: YamlPath, section: YamlPath) -> list[YamlPath]:
    """Return a path of the module that a section is in; nothing for one of an unknown module."""
    return in_modules(pattern, section[1:2] if section[:1] == ("modules",) else ())


@dataclass(frozen=True, slots=True)
class _Renaming:
    """An unknown key at `path`, with its value, and the key that it means, at `target`."""

    path: YamlPath
    value: Any
    data: Any
    target: YamlPath
    field: FieldInfo
    known: Synonym

    def help(self) -> str:
        """Return what to write in place of the key."""
        target, field, known = self.target, self.field, self.known
        key = str(target[-1])
        section = ".".join(map(str, target[:-1]))
        under = "" if target[:-1] == self.path[:-1] else f" under `{section}`"
        why = f" ({known.why})" if known.why else ""
        there = value_at(target, self.data)
        texts = self._texts()
        if self.value is False and known.values.get("false") == "":
            return f"delete it: without it `{key}` is `{field.default}`"
        if texts and there is None:
            lines = listing([f"`{key}: {text}`" for text in texts])
            return f"write {lines}{under} in its place{why}"
        if texts and texts[0] == flow(there):
            return f"delete it: `{key}: {texts[0]}`{under} says the same{why}"
        if texts:
            both = f"write `{key}: {texts[0]}`{under} in its place, or delete it"
            return f"{both}: `{key}: {flow(there)}` is there already"
        if not under and isinstance(self.value, dict):
            return f"did you mean `{key}`?"
        wanted = ""
        if known.sized:
            dp = f"dp of `{LANGUAGE}`"
            wanted = f": `batch.global` / ({dp} x {self.path[-1]}), a number of microbatches"
        elif not models_in(field.annotation)[0]:
            wanted = f": {expected(field_schema(field))}"
        return f"it is `{key}`{under} here{wanted}{why}"

    def _texts(self) -> list[str]:
        """Return our spellings of the value; nothing if it has none."""
        value, field = self.value, self.field
        if self.known.sized:
            value = self._microbatches()
        elif self.known.beta is not None:
            betas = value_at(self.target, self.data)
            pair = list(betas if isinstance(betas, list) and len(betas) == 2 else field.default)
            section = value_at(self.target[:-1], self.data)
            for word, beta in section.items() if isinstance(section, dict) else ():
                other = synonym("", word)
                if other is not None and other.beta is not None:
                    pair[other.beta] = beta
            pair[self.known.beta] = value
            value = pair
        elif self.known.values:
            text = self.known.values.get(str(value).lower(), "")
            return [text] if text else []
        if value is None or (isinstance(value, dict) and len(str(value)) > _MOST_SHOWN):
            return []
        if _takes(field, value):
            return [] if isinstance(value, dict) else [flow(value)]
        if models_in(field.annotation)[0]:
            return []
        return meant(str(self.target[-1]), value, field_schema(field))

    def _microbatches(self) -> int | None:
        """Return the number of microbatches of a size, if it is known and whole."""
        samples = value_at(("batch", "global"), self.data)
        grid = value_at(("modules", LANGUAGE, "grid"), self.data) or {}
        dp = grid.get("dp", 1) if isinstance(grid, dict) and set(grid) <= set(AXES) else None
        counts = [each for each in (samples, dp, self.value) if isinstance(each, int) and each > 0]
        if len(counts) < 3 or counts[0] % (counts[1] * counts[2]):
            return None
        return counts[0] // (counts[1] * counts[2])


def _takes(field: FieldInfo, value: Any) -> bool:
    """Return whether a key takes a value as it is."""
    if models_in(field.annotation)[0]:
        return isinstance(value, dict)
    try:
        leaf_adapter(field).validate_python(value)
    except ValidationError:
        return False
    return True
