"""`--set path=value`: one value of the spec, given on the command line.

Decides: how a dotted path finds its place, and what is reported when it finds none.
Relies on: the YAML rules of the file for the value.
Leaves: whether key and value are right to `load`, which checks the result like any spec.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from mimo_launch.diag.diagnostic import SET_ROOT, Diagnostic, SpecSource, YamlPath
from mimo_launch.spec.wording import did_you_mean
from mimo_launch.spec.yaml_source import Document, parse_value

_EXAMPLE = "write `--set modules.vision.grid.tp=2`"
# What stands in place of a section that is left out, or turned off (`checkpoint: none`).
_ABSENT = (None, "none")


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """Return a copy of `document` with each `path=value` put in, later ones last."""
    if document.data is None or not overrides:
        return document
    data = deepcopy(document.data)
    faults = list(document.diagnostics)
    for number, text in enumerate(overrides):
        try:
            _remember(document.source, _apply(data, text), text)
        except _BadPathError as error:
            headline, _, help_ = str(error).partition("\n")
            path: YamlPath = (SET_ROOT, number)
            document.source.overrides[path] = text
            faults.append(
                Diagnostic(
                    code="bad-override",
                    headline=headline,
                    path=path,
                    why="`--set` replaces one value of the spec, found by its dotted path",
                    help=help_ or _EXAMPLE,
                )
            )
    return Document(data, document.source, tuple(faults))


def _remember(source: SpecSource, path: YamlPath, text: str) -> None:
    """Let all places at and below `path` be the override, whatever stood there before."""
    places: tuple[dict[YamlPath, Any], ...] = (source.marks, source.overrides)
    for known in places:
        for below in [each for each in known if each[: len(path)] == path]:
            del known[below]
    source.overrides[path] = text


class _BadPathError(Exception):
    """An override that leads nowhere; a second line is the remedy."""


def _apply(data: dict[str, Any], text: str) -> YamlPath:
    """Put one value in and return the path that it decides.

    Raises:
        _BadPathError: when the text has no path and value, or the path leads nowhere.
    """
    dotted, equals, value_text = text.partition("=")
    if not equals:
        raise _BadPathError(f"`{text}` has no `=`")
    keys = dotted.strip().split(".")
    if not all(keys):
        raise _BadPathError(f"the path `{dotted}` is empty or has an empty part")
    value, fault = parse_value(value_text)
    if fault:
        raise _BadPathError(f"the value `{value_text}` is not YAML: {fault}")
    parent: Any = data
    created: YamlPath | None = None
    path: YamlPath = ()
    for key in keys[:-1]:
        step = _step(parent, path, key)
        path = (*path, step)
        if isinstance(parent, dict) and parent.get(key) in _ABSENT:
            if path[:1] == ("modules",) and len(path) == 2:
                raise _BadPathError(f"the spec has no module `{key}`\n{_known(key, parent)}")
            parent[key] = {}
            created = created or path
        parent = parent[step]
    step = _step(parent, path, keys[-1])
    parent[step] = value
    # A section made by this override has no place in the file: the override is its place.
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
        raise _BadPathError(f"`{where}` is a list; `{key}` is none of its items, 0 to {last}")
    raise _BadPathError(f"`{where}` is `{parent}`, a single value without a key `{key}`")


def _known(key: str, modules: dict[str, Any]) -> str:
    guess = did_you_mean(key, modules)
    return guess or "its modules are " + ", ".join(f"`{name}`" for name in modules)
