"""A change to a spec: another layout of the same models and batch.

Decides: what a change is, and the order of its settings.
Relies on: `spec.load` to apply settings to a spec, `change_words` for their words.
Leaves: which changes there are to `setting_changes`, `grid_changes` and `memory_changes`.

Models, data, batch and number of ranks stay as they are, so a step computes the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mimo_launch.search.change_words import Settings, words_of
from mimo_launch.spec.load import dump_spec, spec_from_data
from mimo_launch.spec.spec import Spec

# The kind of a change, and its settings.
Idea = tuple[str, Settings]
Ideas = Iterator[Idea]


@dataclass(frozen=True, slots=True)
class Change:
    """A changed spec; `kind` is what is changed first, `settings` all that differs."""

    kind: str
    settings: Settings
    spec: Spec

    @property
    def text(self) -> str:
        """What is changed, in words."""
        return words_of(self.spec, self.settings)


def changed(spec: Spec, kind: str, settings: Settings) -> Change | None:
    """Return a spec with other settings; None if they are no spec, or change nothing."""
    data = dump_spec(spec)
    different: dict[str, Any] = {}
    for path, value in settings.items():
        *keys, last = path.split(".")
        place = data
        for key in keys:
            place = place[key]
        if place.get(last) != value:
            different[path] = place[last] = value
    # In the order of the file.
    sections = [*(f"modules.{name}" for name in spec.modules), *data]
    place_of = {name: place for place, name in enumerate(sections)}
    settings = {
        path: different[path]
        for path in sorted(different, key=lambda path: place_of[_section(path)])
    }
    try:
        return Change(kind, settings, spec_from_data(data)) if different else None
    except ValueError:
        return None


def _section(path: str) -> str:
    return ".".join(path.split(".")[: 2 if path.startswith("modules.") else 1])
