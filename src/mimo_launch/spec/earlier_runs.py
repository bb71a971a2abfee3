"""What an earlier run says of itself: the spec that its checkpoints hold.

Decides: which checkpoint of a run folder speaks for the run, and where a module came from in it.
Relies on: the file that completes a checkpoint, which holds the resolved spec of its run.
Leaves: tensors, and files that are damaged, to `checkpoint`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mimo_launch.spec.files import read_json

MARKER = "checkpoint.json"


def saved_spec(folder: Path) -> dict[str, Any] | None:
    """Return the spec of the run that a folder is of, as JSON; None if nothing can be told."""
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
    """Yield the runs that the weights of a module passed through, newest first, with their specs.

    The last one is what no run has made, such as a Hugging Face folder; its spec is empty. `start`
    is `init_from` of the module.
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
