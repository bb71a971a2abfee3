"""Says which key an unknown one was meant to be, where it belongs, and with which value.

Decides: that the value is kept, in our spelling; that a key with several meanings, or none here,
gets an explanation instead of a line. Help says to delete a key only if that changes nothing.
Relies on: `foreign_words` for words of other trainers, `fields` for our keys in a wrong section,
`value_guesses` for values.
Leaves: misspelt keys to `findings`.
"""

from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from mimo_launch.diag.diagnostic import YamlPath
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.fields import (
    ANY,
    field_at,
    field_schema,
    in_modules,
    places_of,
    takes,
    value_at,
)
from mimo_launch.spec.foreign_words import OFF, Synonym, not_here, synonym, why_other
from mimo_launch.spec.of_kind import models_in
from mimo_launch.spec.value_guesses import choices_of, guess_in_spec
from mimo_launch.spec.wording import expected, flow, listing

# Longer values are renamed, not repeated.
_MOST_SHOWN = 80
# Names of keys that mean another thing in each section.
_SHARED = (
    "kind", "every", "name", "samples", "activation", "decay", "loss_weight", "experts", "dropout",
)  # fmt: skip


class Renamed(NamedTuple):
    """Help for an unknown key, and the paths that it may have been meant for."""

    help: str
    targets: tuple[YamlPath, ...] = ()


def rename_help(path: YamlPath, value: Any, data: Any) -> Renamed | None:
    """Return what to write in place of an unknown key; None if no trainer has that key."""
    section, word = path[:-1], str(path[-1])
    known = synonym(str(section[-1]) if section else "", word, data)
    if known is not None and known.note:
        return Renamed(_without(known, value))
    if known is None:
        target, known = _free_place(section, word, value, data), Synonym()
    else:
        target = _place_of(known, section, data)
    if target is not None and target[-1] == "kind" and isinstance(value, dict):
        target = target[:-1]  # The section, in place of its kind.
    if target is not None and section[: len(target)] == target:
        return None  # The word means the section that it is in.
    field = None if target is None else field_at(target, data)
    if field is not None and isinstance(value, dict) and not models_in(field.annotation)[0]:
        return None  # A section with the name of a setting.
    if target is not None and field is not None:
        return Renamed(_Renaming(path, value, data, target, field, known).help(), (target,))
    return _of_each_module(known, value, data)


def _of_each_module(known: Synonym, value: Any, data: Any) -> Renamed | None:
    """Return that each module has its own key, or that such a value is not here."""
    *above, key = known.key.split(".")
    if ANY not in above:
        return None
    field = field_at(tuple(LANGUAGE if step == ANY else step for step in (*above, key)), data)
    choices = [] if field is None else choices_of(field_schema(field))
    inside = "".join(f" under `{each}`" for each in above[2:][-1:])
    return Renamed(
        not_here(choices, value)
        or f"each module has its own: write `{key}`{inside} of each module that it is meant for"
    )


def _without(known: Synonym, value: Any) -> str:
    """Return what to write for a word without a key, or how a run does without it."""
    word = str(value).strip().lower()
    if known.missing and word in OFF:
        return f"delete it: there is no {known.missing} here"
    # Such a note says how to turn something on; `full` does not mean off there.
    if known.note.startswith("write") and word in OFF and word != "full":
        return "delete it: it is off unless the spec turns it on"
    return f"there is no {known.missing} here: {known.note}" if known.missing else known.note


def _place_of(known: Synonym, section: YamlPath, data: Any) -> YamlPath | None:
    """Return where a synonym belongs: in its section, or in one that has a key of that name.

    In any other section, `kind` and `every` would mean something else.
    """
    pattern: YamlPath = tuple(known.key.split("."))
    beside = (*section, pattern[-1])
    alike = len(pattern) == 1 or section[-1:] == pattern[-2:-1]
    places = _in_module(pattern, section)
    if alike or pattern[-1] not in _SHARED:
        places = [beside, *places]
    return next((each for each in places if field_at(each, data) is not None), None)


def _free_place(section: YamlPath, key: str, value: Any, data: Any) -> YamlPath | None:
    """Return the nearest place that has a key of this name, free, for such a value."""
    nearest: list[YamlPath] = []
    most = 0
    for pattern in places_of(key.replace("-", "_")):
        for path in _in_module(pattern, section):
            field = field_at(path, data)
            if field is None or value_at(path, data) is not None or not takes(field, value):
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


@frozen
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
        texts = our_values(known, target, field, self.value, self.data)
        choices = choices_of(field_schema(field))
        if not why and (other := why_other(choices, self.value)):
            why = f" ({other})"
        if there is None and known.values.get(str(self.value).lower()) == "":
            default = flow(field.get_default(call_default_factory=True))
            return f"delete it: without it `{key}` is `{default}`{why}"
        if texts:
            return _instead([f"`{key}: {text}`" for text in texts], under, why, key, there)
        if not under and isinstance(self.value, dict):
            return f"did you mean `{key}`?"
        if missing := not_here(choices, self.value):
            return missing
        wanted = f": {known.formula}" if known.formula else ""
        if not wanted and not models_in(field.annotation)[0]:
            wanted = f": {expected(field_schema(field))}"
        return f"it is `{key}`{under} here{wanted}{why}"


def _instead(lines: list[str], under: str, why: str, key: str, there: Any) -> str:
    """Return which of some lines to write, given the value that is `there` under that key."""
    if there is None:
        return f"write {listing(lines)}{under} in its place{why}"
    same = f"`{key}: {flow(there)}`"
    if lines[0] == same:
        return f"delete it: {same}{under} says the same{why}"
    return f"write {lines[0]}{under} in its place, or delete it: {same} is there already"


def our_values(
    known: Synonym, target: YamlPath, field: FieldInfo, value: Any, data: Any
) -> list[str]:
    """Return our spellings of the value of a synonym for the key at `target`; nothing if none."""
    if known.derive is not None:
        value = known.derive(value, data, target)
    elif known.values:
        text = known.values.get(str(value).lower(), "")
        return [text] if text else []
    if value is None or (isinstance(value, dict) and len(str(value)) > _MOST_SHOWN):
        return []
    if takes(field, value):
        return [] if isinstance(value, dict) else [flow(value)]
    if models_in(field.annotation)[0]:
        return []
    return guess_in_spec(target, value, field_schema(field), data)
