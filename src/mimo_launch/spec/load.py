"""Loads a spec from a file and overrides, from data, or from the checkpoint of an earlier run.

Decides: which checkpoint gives the spec of a run, and from which runs the weights of a module came.
Relies on: `yaml_source`, `overrides` and `parse`; the file that completes a checkpoint, which holds
the resolved spec of its run.
Leaves: checks of more than one key to `checks`, tensors to `checkpoint`.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mimo_launch.diag.diagnostic import Diagnostic, SpecSource
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.files import read_json
from mimo_launch.spec.overrides import apply_overrides, in_order
from mimo_launch.spec.parse import read_module, read_spec
from mimo_launch.spec.spec import Model, Spec
from mimo_launch.spec.yaml_source import Document, read_file, read_text

# The file that completes a checkpoint. `checkpoint.folder` writes it; the name is here because
# `saved_spec` needs it, and `spec` does not import `checkpoint`.
MARKER = "checkpoint.json"


@frozen
class Loaded:
    """The result of loading a spec.

    `spec` is None when anything is wrong with keys or types. `partial` then holds the sound parts:
    reading any other part raises `MissingPartError`. It is None when the YAML itself is unreadable.
    """

    spec: Spec | None
    partial: Spec | None
    diagnostics: tuple[Diagnostic, ...]
    source: SpecSource


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read a spec file, apply `path=value` overrides, and convert it to a `Spec`."""
    return _load(read_file(path), overrides)


def load_text(text: str, name: str = "<text>", overrides: Sequence[str] = ()) -> Loaded:
    """Load a text in memory, like `load_spec`."""
    return _load(read_text(text, name), overrides)


def spec_from_data(data: dict[str, Any]) -> Spec:
    """Return the spec of resolved data, such as `dump_spec` returns.

    Raises:
        ValueError: if the data are not a valid spec; data from `dump_spec` always are.
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


def dump_written(spec: Spec) -> dict[str, Any]:
    """Return `dump_spec` with the steps that the spec says itself, which epochs may make fewer."""
    data = dump_spec(spec)
    if spec.train.written_steps is None:
        del data["train"]["steps"]
    else:
        data["train"]["steps"] = spec.train.written_steps
    return data


def with_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Return what an earlier version dumped, with the defaults of keys that are new since.

    Data that are no valid spec any more come back as they are.
    """
    with suppress(ValueError):
        return dump_spec(spec_from_data(data))
    return data


def _load(document: Document, overrides: Sequence[str]) -> Loaded:
    document = apply_overrides(document, overrides)
    if document.data is None:
        return Loaded(None, None, document.diagnostics, document.source)
    spec, faults = read_spec(document.data)
    diagnostics = in_order((*document.diagnostics, *faults), document.source)
    return Loaded(None if diagnostics else spec, spec, diagnostics, document.source)


def saved_spec(folder: Path) -> dict[str, Any] | None:
    """Return the spec in the checkpoints of a run folder, as data; None if there is none."""
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
