"""Where each key and value of a spec was written: in a file, or on the command line.

Decides: how a YAML path becomes a place to point at.
Relies on: marks collected by the loader of `spec`, one per path.
Leaves: drawing to `text`.
"""

from dataclasses import dataclass, field
from functools import cached_property

from mimo_launch.diag.diagnostic import Diagnostic, YamlPath

# Faults of a `--set` that leads nowhere have no path in the spec; they use (SET_ROOT, number).
SET_ROOT = "--set"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one line, 1-based."""

    line: int
    column: int
    length: int = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """Spans of the key and of the value at a path; items of a list have no key."""

    key: Span | None
    value: Span


@dataclass(frozen=True, slots=True)
class Place:
    """What a diagnostic points at: a span of the file, or the text of a `--set`."""

    span: Span | None = None
    override: str | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """The text of a spec, and where each of its parts stands.

    `overrides` maps a path to the text of the `--set` that gave it its value.
    """

    name: str
    text: str = ""
    marks: dict[YamlPath, Mark] = field(default_factory=dict)
    overrides: dict[YamlPath, str] = field(default_factory=dict)

    @cached_property
    def lines(self) -> list[str]:
        """Lines of the text, without their ends."""
        return self.text.splitlines()

    def place(self, path: YamlPath, *, at_key: bool = False) -> Place:
        """Return where `path` was written, or its nearest parent that was written anywhere."""
        for size in range(len(path), -1, -1):
            prefix = path[:size]
            if prefix in self.overrides:
                return Place(override=self.overrides[prefix])
            mark = self.marks.get(prefix)
            if mark is not None:
                # A parent is named by its key: its value may be many lines long.
                use_key = mark.key is not None and (at_key or size < len(path))
                return Place(span=mark.key if use_key else mark.value)
        return Place()

    def place_of(self, diagnostic: Diagnostic) -> Place:
        """Return the place of a diagnostic; a given line and column win over its path."""
        if diagnostic.line is not None:
            return Place(span=Span(diagnostic.line, diagnostic.column or 1))
        return self.place(diagnostic.path, at_key=diagnostic.at_key)

    def sorted(self, diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
        """Return diagnostics in the order of their places, command line first, each once."""

        def key(item: Diagnostic) -> tuple[int, int, str, str]:
            span = self.place_of(item).span
            line, column = (span.line, span.column) if span else (0, 0)
            return line, column, item.code, item.headline

        return tuple(sorted(dict.fromkeys(diagnostics), key=key))
