"""Defines a finding (what is wrong, where in the YAML, why, what to write) and its code's page.

Decides: the parts of every message about a spec, and the fields of its row in `validate --json`;
how a YAML path becomes a place in the file or on the command line; the form of a page, which
`mimo-launch explain` prints and the docs show.
Relies on: the marks that the loader of `spec` collects, one per path; the pages next to this file.
Leaves: headlines with values to the checks, text for people to `text`.
"""

import re
from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from mimo_launch.diag.frozen import frozen

MAX_TEXT = 1000
# The longest quoted value in a headline, which must be readable at a glance.
MAX_QUOTED = 120
_QUOTED = re.compile(r"`([^`]*)`")


YamlPath = tuple[str | int, ...]


def shortened(text: str, most: int = 60) -> str:
    """Return a text, without its middle if it is longer than `most`."""
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


class Severity(StrEnum):
    """The severity of a finding: an error stops the command, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@frozen
class Related:
    """A second place that belongs to a finding, with a short label."""

    path: YamlPath
    label: str


@frozen(kw_only=True)
class Diagnostic:
    """One finding about one spec.

    `path` leads to the faulty value, e.g. `("modules", "vision", "grid", "tp")`, or with `at_key`
    to its key. A path that is not in the file (a missing key, a default) means its nearest parent
    that is. `line` and `column` (1-based) are set only if the YAML could not be parsed, so that
    there is no path. `is_absence`: the spec may be right, but a file that it names is not here.
    """

    code: str
    headline: str
    path: YamlPath = ()
    at_key: bool = False
    why: str = ""
    help: str = ""
    related: tuple[Related, ...] = ()
    severity: Severity = Severity.ERROR
    is_absence: bool = False
    line: int | None = None
    column: int | None = None

    def __post_init__(self) -> None:
        # Messages quote the file, where one word may be as long as the file.
        brief = _QUOTED.sub(lambda found: f"`{shortened(found[1], MAX_QUOTED)}`", self.headline)
        object.__setattr__(self, "headline", brief)
        for name in ("headline", "why", "help"):
            object.__setattr__(self, name, shortened(getattr(self, name), MAX_TEXT))

    @property
    def is_error(self) -> bool:
        """Return whether this finding makes the spec unusable."""
        return self.severity is Severity.ERROR


# A `--set` with a path that leads nowhere gets the path (SET_ROOT, number).
SET_ROOT = "--set"


@frozen
class SourceSpan:
    """A part of one line, 1-based."""

    line: int
    column: int
    length: int = 1


@frozen
class Mark:
    """The spans of the key and of the value at a path; items of a list have no key."""

    key: SourceSpan | None
    value: SourceSpan


@frozen
class SourcePlace:
    """The place of a diagnostic: a span of the file, or the text of a `--set`."""

    span: SourceSpan | None = None
    override: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the place as members of a JSON object."""
        span = self.span
        return {
            "line": span.line if span else None,
            "column": span.column if span else None,
            "length": span.length if span else None,
            "set": self.override,
        }


@frozen(kw_only=True, slots=False)
class SpecSource:
    """The text of a spec, and the place of each of its parts.

    `overrides` maps a path to the text of the `--set` that set its value.
    """

    name: str
    text: str = ""
    marks: dict[YamlPath, Mark] = field(default_factory=dict)
    overrides: dict[YamlPath, str] = field(default_factory=dict)

    @cached_property
    def lines(self) -> list[str]:
        """Return the lines of the text, without their ends."""
        return self.text.splitlines()

    def place(self, path: YamlPath, *, at_key: bool = False) -> SourcePlace:
        """Return the place of `path`, or of its nearest parent that has one."""
        for size in range(len(path), -1, -1):
            prefix = path[:size]
            if prefix in self.overrides:
                return SourcePlace(override=self.overrides[prefix])
            mark = self.marks.get(prefix)
            if mark is not None:
                # A parent is marked at its key: its value may be many lines long.
                use_key = mark.key is not None and (at_key or size < len(path))
                return SourcePlace(span=mark.key if use_key else mark.value)
        return SourcePlace()

    def place_of(self, diagnostic: Diagnostic) -> SourcePlace:
        """Return the place of a diagnostic; its line and column, if set, override its path."""
        if diagnostic.line is not None:
            return SourcePlace(span=SourceSpan(diagnostic.line, diagnostic.column or 1))
        return self.place(diagnostic.path, at_key=diagnostic.at_key)

    def sorted(self, diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
        """Return each diagnostic once, in the order of their places, command line first."""

        def key(item: Diagnostic) -> tuple[int, int, str, str]:
            span = self.place_of(item).span
            line, column = (span.line, span.column) if span else (0, 0)
            return line, column, item.code, item.headline

        return tuple(sorted(dict.fromkeys(diagnostics), key=key))


def to_json(diagnostics: Sequence[Diagnostic], source: SpecSource) -> list[dict[str, Any]]:
    """Return one plain row per diagnostic, in order of place."""
    return [
        {
            "code": item.code,
            "severity": item.severity.value,
            "headline": item.headline,
            "file": source.name,
            **source.place_of(item).fields(),
            "path": list(item.path),
            "why": item.why,
            "help": item.help,
            "related": [
                {**source.place(other.path).fields(), "label": other.label}
                for other in item.related
            ],
        }
        for item in source.sorted(tuple(diagnostics))
    ]


# The code; error or warning, and what is wrong; why; a fragment with the fault, and a fixed one.
_FORM = re.compile(
    r"# (?P<name>[a-z0-9-]+)\n\n"
    r"\*(?P<severity>error|warning)\* - (?P<summary>[^\n]+)\n\n"
    r"(\S[^\n]*\n)+\n"
    r"Wrong:\n\n(    [^\n]+\n)+\n"
    r"Right:\n\n(    [^\n]+\n)+"
)


@frozen
class Code:
    """A code, and the page that explains it.

    Attributes:
        name: Names the wrong pattern.
        is_warning: Whether a command continues despite it.
        summary: One sentence about the mistake.
        page: The whole page, as Markdown that reads well as plain text.
    """

    name: str
    is_warning: bool
    summary: str
    page: str


@cache
def all_codes() -> dict[str, Code]:
    """Return every code under its name, in alphabetical order."""
    pages = files("mimo_launch.diag") / "pages"
    names = {page.name.removesuffix(".md") for page in pages.iterdir()} - {"index"}
    codes = {}
    for name in sorted(names):
        page = (pages / f"{name}.md").read_text(encoding="utf-8")
        found = _FORM.fullmatch(page)
        if found is None or found["name"] != name:
            raise ValueError(f"diag/pages/{name}.md does not have the form of the other pages")
        codes[name] = Code(name, found["severity"] == "warning", found["summary"], page)
    return codes
