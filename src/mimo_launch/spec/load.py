"""Loads a spec from a file and overrides, from data, or from the checkpoint of an earlier run.

Decides: how the dotted path of `--set path=value` finds its place, and what is reported if there is
none; which checkpoint gives the spec of a run, and from which runs the weights of a module came.
Relies on: `yaml_source` and `parse`; the file that completes a checkpoint, which holds the resolved
spec of its run.
Leaves: checks that need two keys at once to `checks`, tensors to `checkpoint`.
"""

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimo_launch.diag.diagnostic import SET_ROOT, Diagnostic, SpecSource, YamlPath
from mimo_launch.spec.files import read_json
from mimo_launch.spec.findings import in_order
from mimo_launch.spec.parse import read_module, read_spec
from mimo_launch.spec.set_paths import meant_paths, set_line
from mimo_launch.spec.spec import Model, Spec
from mimo_launch.spec.wording import did_you_mean, listing
from mimo_launch.spec.yaml_source import Document, parse_value, read_file, read_text

_EXAMPLE = "write `--set modules.vision.grid.tp=2`"
# The values of a section that is left out, or turned off (`checkpoint: none`).
_ABSENT = (None, "none")


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
            headline, _, help_ = str(error).partition("\n")
            path = (SET_ROOT, number)
            faults.append(
                Diagnostic(
                    code="bad-override",
                    headline=headline,
                    path=path,
                    why="`--set` replaces one value of the spec, found by its dotted path",
                    help=help_ or _EXAMPLE,
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
    """An override whose path leads nowhere; the second line of the message is the remedy."""


def _apply(data: dict[str, Any], text: str) -> YamlPath:
    """Set one value and return the path that the override decides.

    Raises:
        _BadPathError: when the text has no path and value, or the path leads nowhere.
    """
    dotted, equals, value_text = text.partition("=")
    if not equals:
        meant = re.fullmatch(r"\s*([\w.-]+)(?:\s*:\s*|\s+)(\S.*)", text)
        at, said = meant.groups() if meant else (text.strip() or "train.steps", "VALUE")
        help_ = f"write {set_line(at, said)}"
        raise _BadPathError(f"`{text}` has no `=`\n{help_}")
    dotted = dotted.strip()
    keys = dotted.split(".")
    meant_for = meant_paths(dotted, data)
    lines = [set_line(path, value_text) for path in meant_for]
    help_ = f"write {listing(lines)}" if lines else ""
    if not all(keys):
        raise _BadPathError(f"the path `{dotted}` is empty or has an empty part\n{help_}")
    if help_:
        raise _BadPathError(f"the spec has no place `{dotted}`\n{help_}")
    value, fault = parse_value(value_text)
    if fault:
        help_ = f"write a value in YAML: {set_line(dotted, 'VALUE')}"
        raise _BadPathError(f"the value `{value_text}` is not YAML: {fault}\n{help_}")
    parent: Any = data
    created: YamlPath | None = None
    path: YamlPath = ()
    for key in keys[:-1]:
        step = _step(parent, path, key)
        path = (*path, step)
        if isinstance(parent, dict) and parent.get(key) in _ABSENT:
            if path[:1] == ("modules",) and len(path) == 2:
                names = "its modules are " + ", ".join(f"`{name}`" for name in parent)
                help_ = did_you_mean(key, parent) or names
                raise _BadPathError(f"the spec has no module `{key}`\n{help_}")
            parent[key] = {}
            created = created or path
        parent = parent[step]
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
        raise _BadPathError(f"`{where}` is a list; `{key}` is not one of its items, 0 to {last}")
    raise _BadPathError(f"`{where}` is `{parent}`, a single value, and has no key `{key}`")


# The file that completes a checkpoint. `checkpoint.folder` writes it; the name stands here because
# `saved_spec` needs it, and `spec` does not import `checkpoint`.
MARKER = "checkpoint.json"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of loading a spec.

    `spec` is None when anything is wrong with keys or types. `partial` then holds the sound parts:
    reading another one raises `MissingPartError`. It is None when the YAML itself is unreadable.
    """

    spec: Spec | None
    partial: Spec | None
    diagnostics: tuple[Diagnostic, ...]
    source: SpecSource


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read a spec file, apply `path=value` overrides, and type it."""
    return _load(read_file(path), overrides)


def load_text(text: str, name: str = "<text>", overrides: Sequence[str] = ()) -> Loaded:
    """Do the same for a text in memory."""
    return _load(read_text(text, name), overrides)


def spec_from_data(data: dict[str, Any]) -> Spec:
    """Return the spec that resolved data describe, such as those that `dump_spec` returns.

    Raises:
        ValueError: when the data are no valid spec; data from `dump_spec` always are.
    """
    spec, diagnostics = read_spec(data)
    if diagnostics:
        raise ValueError("; ".join(item.headline for item in diagnostics))
    return spec


def model_from_data(data: dict[str, Any]) -> Model:
    """Return the model that `model:` of a module describes. Raises: ValueError."""
    module, diagnostics = read_module({"model": data, "ranks": "0"})
    if diagnostics:
        raise ValueError("; ".join(item.headline for item in diagnostics))
    return module.model


def dump_spec(spec: Spec) -> dict[str, Any]:
    """Return a spec with all defaults as plain data for JSON; `spec_from_data` reads it back."""
    return spec.model_dump(mode="json", by_alias=True)


def _load(document: Document, overrides: Sequence[str]) -> Loaded:
    document = apply_overrides(document, overrides)
    if document.data is None:
        return Loaded(None, None, document.diagnostics, document.source)
    spec, faults = read_spec(document.data)
    diagnostics = in_order((*document.diagnostics, *faults), document.source)
    return Loaded(None if diagnostics else spec, spec, diagnostics, document.source)


def saved_spec(folder: Path) -> dict[str, Any] | None:
    """Return the spec of the run of a folder, as JSON; None if no checkpoint has one."""
    markers = [folder / MARKER, *sorted(folder.glob(f"checkpoints/step-*/{MARKER}"), reverse=True)]
    for marker in markers:
        if marker.is_file() and not marker.parent.suffix:
            try:
                spec = read_json(marker)["spec"]
            except (OSError, ValueError, LookupError, TypeError):
                continue
            return spec if isinstance(spec, dict) else None
    return None


def earlier_specs(start: str | None, module: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the runs that trained the weights of a module, newest first, with their specs.

    The last one is the origin of the weights, such as a Hugging Face folder; its spec is empty.
    `start` is `init_from` of the module.
    """
    seen = set[Path]()
    while isinstance(start, str) and (folder := Path(start).resolve()) not in seen:
        seen.add(folder)
        spec = saved_spec(folder) or {}
        yield start, spec
        try:
            start = spec["modules"][module]["init_from"]
        except (LookupError, TypeError):
            return
