"""Applies `--set path=value`, and shows the `--set` to write instead of a wrong one.

Decides: how a dotted path finds its place, which path a wrong one means, and which help becomes a
`--set`. In a wrong path `/` and `[0]` mean dots, a module may lack `modules` before it, and a key
alone leads to the places that have it.
Relies on: `fields` and `foreign_words` for paths, `yaml_source` for values.
Leaves: misspelt keys and wrong values to `findings`.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from mimo_launch.diag.diagnostic import SET_ROOT, Diagnostic, SpecSource, YamlPath
from mimo_launch.spec.fields import all_paths, field_at, in_modules
from mimo_launch.spec.foreign_words import synonym
from mimo_launch.spec.near_words import close_matches, did_you_mean
from mimo_launch.spec.renaming import our_values
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.wording import flow, listing
from mimo_launch.spec.yaml_source import UNREADABLE, Document, parse_value

# Not as a `--set` to write: it would change another setting than the one that was meant.
_EXAMPLE = "write a path and a value, such as `modules.vision.grid.tp=2`"
# The values of a section that is left out, or turned off (`checkpoint: none`).
_ABSENT = (None, "none")
# With more paths than this, none is offered.
_MOST = 4


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """Return a copy of `document` with each `path=value` applied in order."""
    if document.data is None or not overrides:
        return document
    data, source = deepcopy(document.data), document.source
    faults = list(document.diagnostics)
    for number, text in enumerate(overrides):
        try:
            path = _apply(data, text)
        except _BadPathError as error:
            path = (SET_ROOT, number)
            faults.append(
                Diagnostic(
                    code="bad-override",
                    headline=error.headline,
                    path=path,
                    why="`--set` replaces one value of the spec, found by its dotted path",
                    help=error.help,
                )
            )
        # The override is now the place of everything at and below its path.
        places: tuple[dict[YamlPath, Any], ...] = (source.marks, source.overrides)
        for known in places:
            for below in [each for each in known if each[: len(path)] == path]:
                del known[below]
        source.overrides[path] = text
    return Document(data, source, tuple(faults))


class _BadPathError(Exception):
    """The path of an override leads nowhere."""

    def __init__(self, headline: str, help_: str = "") -> None:
        super().__init__(headline)
        self.headline, self.help = headline, help_ or _EXAMPLE


def _apply(data: dict[str, Any], text: str) -> YamlPath:
    """Set one value and return the path that the override decides.

    Raises:
        _BadPathError: when the text has no path and value, or the path leads nowhere.
    """
    dotted, equals, value_text = text.partition("=")
    if not equals:
        meant = re.fullmatch(r"\s*([\w.-]+)(?:\s*:\s*|\s+)(\S.*)", text)
        at, said = meant.groups() if meant else (text.strip() or "train.steps", "VALUE")
        raise _BadPathError(f"`{text}` has no `=`", f"write {set_line(at, said)}")
    dotted = dotted.strip()
    keys = dotted.split(".")
    lines = [
        set_line(path, each)
        for path in guess_paths(dotted, data)
        for each in _guess_values(path, dotted, value_text, data)
    ]
    help_ = f"write {listing(lines)}{_why(dotted, value_text)}" if lines else ""
    if not all(keys):
        raise _BadPathError(f"the path `{dotted}` is empty or has an empty part", help_)
    if help_:
        raise _BadPathError(f"the spec has no place `{dotted}`", help_)
    value, fault = parse_value(value_text)
    if fault:
        help_ = f"write a value in YAML: {set_line(dotted, 'VALUE')}"
        raise _BadPathError(f"the value `{value_text}` is not YAML: {fault}", help_)
    parent: Any = data
    created: YamlPath | None = None
    path: YamlPath = ()
    for key in keys[:-1]:
        step = _step(parent, path, key)
        path = (*path, step)
        if isinstance(parent, dict) and parent.get(key) in _ABSENT:
            if path[:1] == ("modules",) and len(path) == 2:
                names = "its modules are " + ", ".join(f"`{name}`" for name in parent)
                without = "the spec has no modules yet: write them into the file"
                help_ = did_you_mean(key, parent) or (names if parent else without)
                raise _BadPathError(f"the spec has no module `{key}`", help_)
            parent[key] = {}
            created = created or path
        parent = parent[step]
        if parent is UNREADABLE:
            return path  # Its own fault is reported.
    step = _step(parent, path, keys[-1])
    parent[step] = value
    # A section that this override created has no place in the file: the override is its place.
    return created or (*path, step)


def _step(parent: Any, path: YamlPath, key: str) -> str | int:
    """Return the key or index to follow from `parent`."""
    where = ".".join(map(str, path))
    if isinstance(parent, dict):
        return key
    if isinstance(parent, list):
        if key.isdecimal() and int(key) < len(parent):
            return int(key)
        last = len(parent) - 1
        raise _BadPathError(
            f"`{where}` is a list; `{key}` is not one of its items, 0 to {last}",
            f"write the whole list, as `{where}={flow(parent)}`, or one of these items",
        )
    raise _BadPathError(
        f"`{where}` is `{parent}`, a single value, and has no key `{key}`",
        f"write the value itself, as `{where}={flow(parent)}`",
    )


def guess_paths(dotted: str, data: Any) -> list[str]:
    """Return the dotted paths that another one may mean; nothing if it needs no change."""
    keys = [key for key in re.split(r"[./\[\]\s]+", dotted) if key]
    modules = data.get("modules") if isinstance(data, dict) else None
    names = list(modules) if isinstance(modules, dict) else []
    if not keys:
        return []
    if keys[0] == "modules" and len(keys) > 1 and keys[1].isdecimal() and int(keys[1]) < len(names):
        keys[1] = names[int(keys[1])]
    tops = {field.alias or name for name, field in Spec.model_fields.items()}
    if keys[0] in names and keys[0] not in tops:
        keys = ["modules", *keys]
    if keys[0] in tops:
        plain = ".".join(keys)
        return [plain] if plain != dotted else []
    known = synonym("", keys[-1], data)
    end = tuple(known.key.split(".")) if known is not None and known.key else tuple(keys)
    found = dict[str, None]()
    for pattern in all_paths():
        if pattern[-len(end) :] == end:
            for path in in_modules(pattern, names):
                if field_at(path, data) is not None:
                    found[".".join(map(str, path))] = None
    # A setting of the whole run, if there is one, rather than its overrides in modules.
    common = [path for path in found if not path.startswith("modules.")]
    return common or (list(found) if len(found) <= _MOST else [])


def _guess_values(path: str, dotted: str, text: str, data: Any) -> list[str]:
    """Return our spellings of a value that was written for another name or in another unit."""
    known, keys = synonym("", dotted.rpartition(".")[2], data), tuple(path.split("."))
    field = field_at(keys, data)
    if known is None or field is None or not (known.values or known.derive):
        return [text]
    return our_values(known, keys, field, parse_value(text)[0], data)


def _why(dotted: str, text: str) -> str:
    """Return, in brackets, why our value does not quite mean the same as the foreign one."""
    known = synonym("", dotted.rpartition(".")[2])
    why = known.why if known is not None and known.values.get(text.lower()) else ""
    return f" ({why})" if why else ""


def set_line(dotted: str, value: str) -> str:
    """Return a `--set` as a shell reads it, in backticks."""
    return f"`--set {shlex.quote(f'{dotted}={value}')}`"


_GUESS = re.compile(r"did you mean `([^`]+)`(?: or `[^`]+`|, `[^`]+`)*\?")


def in_order(found: Iterable[Diagnostic], source: SpecSource) -> tuple[Diagnostic, ...]:
    """Return each finding once, in the order of their places; help suits a file or a `--set`."""
    if source.overrides:
        found = [replace(item, help=_help(item, source)) for item in found]
    return source.sorted(tuple(found))


_LINE = re.compile(r"`(\w+): ([^`]+)`(?: under `([\w.]+)`| for `(\w+)`| in `\w+`)?( in its place)?")


def _help(item: Diagnostic, source: SpecSource) -> str:
    """Return help that offers another `--set` for each value that came from a `--set`."""
    override, help_ = source.place_of(item).override, item.help
    if override is not None:
        keys, path = override.partition("=")[0].strip().split("."), list(map(str, item.path))
        value = override.partition("=")[2]
        if item.at_key and path == keys[: len(path)]:
            # A key in its path is wrong.
            before, after = keys[: len(path) - 1], keys[len(path) :]
            used = _used_keys(item.path, source)

            def meant(match: re.Match[str]) -> str:
                near = close_matches(path[-1], [*used, match[1]]) or [match[1]]
                return f"write {_set([*before, near[0], *after], value)}"

            help_ = _GUESS.sub(meant, help_)
        elif path == keys:
            help_ = _GUESS.sub(lambda m: f"write {_set(keys, m[1])}", help_)
    if override is not None and " in its place" in help_:
        help_ = help_.partition(", or delete it")[0]
    changed = _LINE.sub(lambda m: _set_line(m, item, source, override), help_)
    return changed if changed == help_ else changed.replace(" without quotes", "")


def _used_keys(path: YamlPath, source: SpecSource) -> list[str]:
    """Return the keys that the file has beside that of a path: a `--set` may replace these too."""
    beside = [each for each in source.marks if each[:-1] == path[:-1] and each != path]
    return [str(each[-1]) for each in beside if field_at(each, {}) is not None]


def _set_line(
    match: re.Match[str], item: Diagnostic, source: SpecSource, override: str | None
) -> str:
    key, value, under, module, instead = match.groups()
    above = [item.path[:size] for size in range(len(item.path), -1, -1)]
    sections: list[YamlPath] = [tuple(under.split("."))] if under else above
    if module:
        sections = [("modules", module), ("modules", module, "model")]
    lines: list[YamlPath] = [(*section, key) for section in sections]
    places = [line for line in lines if field_at(line, {}) is not None]
    if not places:
        return match[0]
    (at, *_) = places
    is_set = any(
        at[: len(path)] == path or path[: len(at)] == at for path in source.overrides if path
    )
    if not is_set and not (instead and override is not None):
        return match[0]
    return _set([str(step) for step in at], value)


def _set(keys: list[str], value: str) -> str:
    return set_line(".".join(keys), value)
