"""A finding as a value: what is wrong, where in the YAML, why, and what to write instead.

Decides: the shape of every message about a spec; how a YAML path becomes a place to point at, in
the file or on the command line.
Relies on: marks collected by the loader of `spec`, one per path.
Leaves: the long explanations to `codes`, drawing to `text`.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

MAX_TEXT = 1000


YamlPath = tuple[str | int, ...]


def shortened(text: str, most: int = 60) -> str:
    """Return a text with its middle left out if it is long."""
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


class Severity(StrEnum):
    """How bad a finding is: an error stops the command, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """A second place that takes part in a finding, with a short label."""

    path: YamlPath
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding about one spec.

    `path` leads to the offending value, e.g. `("modules", "vision", "grid", "tp")`; with `at_key`
    the key is meant rather than its value. A path that is not in the file (a missing key, a
    default) falls back to its nearest parent that is. `line` and `column` (1-based) are set only
    when the YAML itself could not be read, so that no path exists.
    """

    code: str
    headline: str
    path: YamlPath = ()
    at_key: bool = False
    why: str = ""
    help: str = ""
    related: tuple[Related, ...] = ()
    severity: Severity = Severity.ERROR
    line: int | None = None
    column: int | None = None

    def __post_init__(self) -> None:
        # They quote the file, in which a word may be as long as the file itself.
        for name in ("headline", "why", "help"):
            object.__setattr__(self, name, shortened(getattr(self, name), MAX_TEXT))

    @property
    def is_error(self) -> bool:
        """Whether this finding makes the spec unusable."""
        return self.severity is Severity.ERROR


# Faults of a `--set` that leads nowhere have no path in the spec; they use (SET_ROOT, number).
SET_ROOT = "--set"


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A stretch of one line, 1-based."""

    line: int
    column: int
    length: int = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """Spans of the key and of the value at a path; items of a list have no key."""

    key: SourceSpan | None
    value: SourceSpan


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """What a diagnostic points at: a span of the file, or the text of a `--set`."""

    span: SourceSpan | None = None
    override: str | None = None


@dataclass(frozen=True, kw_only=True)
class SpecSource:
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

    def place(self, path: YamlPath, *, at_key: bool = False) -> SourcePlace:
        """Return where `path` was written, or its nearest parent that was written anywhere."""
        for size in range(len(path), -1, -1):
            prefix = path[:size]
            if prefix in self.overrides:
                return SourcePlace(override=self.overrides[prefix])
            mark = self.marks.get(prefix)
            if mark is not None:
                # A parent is named by its key: its value may be many lines long.
                use_key = mark.key is not None and (at_key or size < len(path))
                return SourcePlace(span=mark.key if use_key else mark.value)
        return SourcePlace()

    def place_of(self, diagnostic: Diagnostic) -> SourcePlace:
        """Return the place of a diagnostic; a given line and column win over its path."""
        if diagnostic.line is not None:
            return SourcePlace(span=SourceSpan(diagnostic.line, diagnostic.column or 1))
        return self.place(diagnostic.path, at_key=diagnostic.at_key)

    def sorted(self, diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
        """Return diagnostics in the order of their places, command line first, each once."""

        def key(item: Diagnostic) -> tuple[int, int, str, str]:
            span = self.place_of(item).span
            line, column = (span.line, span.column) if span else (0, 0)
            return line, column, item.code, item.headline

        return tuple(sorted(dict.fromkeys(diagnostics), key=key))
