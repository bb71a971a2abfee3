"""Formats diagnostics as text for people.

Decides: the form of every message: headline, place, excerpt, why, help, where to read more; that
text wraps to the width of a terminal, but code does not.
Relies on: a `SpecSource` for places; the caller decides on colour and width.
Leaves: rows for programs to `diagnostic`; streams, terminals and exit codes to `cli`.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from mimo_launch.diag.diagnostic import (
    Diagnostic,
    Severity,
    SourcePlace,
    SourceSpan,
    SpecSource,
    shortened,
)
from mimo_launch.diag.frozen import frozen

# Control characters, and ends of lines other than `\n`.
_UNSEEN = ("Cc", "Zl", "Zp")
# Marks that change the direction of the text after them.
_TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ANSI = {"error": "1;31", "warning": "1;33", "place": "36", "bold": "1"}
# A user reads no more findings at a time, and no longer lines.
MOST_SHOWN, MAX_LINE = 100, 160
_KEPT_BEFORE = 60
# Where the text of a note begins.
_INDENT = 11
# A line never breaks inside code in backticks, an option with its value, or a command.
_ATOM = re.compile(r"(?:pip install(?: '[^']*')+|mimo-launch explain |--set |`[^`]*`|\S)+")


def render(
    diagnostics: Sequence[Diagnostic],
    source: SpecSource,
    *,
    color: bool = False,
    width: int | None = None,
) -> str:
    """Return all diagnostics of one file, in order of place, and a last line with their count.

    With a `width`, sentences wrap to it.
    """
    found = source.sorted(tuple(diagnostics))
    if not found:
        return ""
    form = _Form(source, color, width)
    blocks = [form.block(item) for item in found[:MOST_SHOWN]]
    more = f"; the first {MOST_SHOWN} are shown" if len(found) > MOST_SHOWN else ""
    return "\n\n".join([*blocks, f"{count(diagnostics)} in {source.name}{more}"])


def visible(text: str) -> str:
    """Return a line for a terminal, with escapes for characters that would move its cursor."""
    if text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode("ascii")
        if letter != "\t" and (unicodedata.category(letter) in _UNSEEN or letter in _TURNS)
        else letter
        for letter in text
    )


def filled(text: str, width: int | None, column: int, indent: int) -> str:
    """Return a text that begins at `column` of a line, wrapped between words to `width` columns.

    Further lines begin with `indent` blanks. An indented text is code and stays whole; so does code
    in backticks, even if it is longer than a line.
    """
    if width is None or text.startswith(" ") or column + _columns(text) <= width:
        return text
    lines, room = [""], width - column
    for atom in _ATOM.findall(text):
        if lines[-1] and _columns(f"{lines[-1]} {atom}") > room:
            lines.append("")
            room = width - indent
        lines[-1] = f"{lines[-1]} {atom}".lstrip()
    return f"\n{' ' * indent}".join(lines)


def count(diagnostics: Iterable[Diagnostic]) -> str:
    """Return `2 errors, 1 warning`."""
    found = list(diagnostics)
    errors = sum(item.is_error for item in found)
    parts = [(errors, "error"), (len(found) - errors, "warning")]
    return ", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in parts if n) or "no findings"


def location(place: SourcePlace, source: SpecSource) -> str:
    """Return `file:line:column`, or the `--set`."""
    if place.override is not None:
        return f"--set {shortened(place.override, MAX_LINE)}"
    if place.span is None:
        return source.name
    return f"{source.name}:{place.span.line}:{place.span.column}"


@frozen
class _Form:
    """Formats the text about one file, with or without colour and a width to wrap to."""

    source: SpecSource
    color: bool
    width: int | None

    def block(self, item: Diagnostic) -> str:
        """Return one diagnostic: headline, place, excerpt and notes."""
        source, width = self.source, self.width
        place = source.place_of(item)
        related = [(source.place(other.path), other.label) for other in item.related]
        spans = [(other.span, label, "-") for other, label in related if other.span is not None]
        if place.span is not None:
            spans.append((place.span, "", "^"))
        severity = item.severity.value
        tag = f"{severity}[{item.code}]"
        head = filled(visible(item.headline), width, len(tag) + 2, _INDENT)
        lines = [f"{self._paint(tag, severity)}: {self._paint(head, 'bold')}"]
        lines.append(f"  {self._paint('-->', 'place')} {visible(location(place, source))}")
        excerpt = list(self._excerpt(spans, severity))
        digits = max((len(str(span.line)) for span, _, _ in spans), default=1)
        bar = " " * (max(2, digits) + 1) + "|"
        if excerpt:
            lines += [bar, *excerpt, bar]
        notes = [
            ("with", f"--set {shortened(other.override)}: {label}")
            for other, label in related
            if other.override
        ]
        notes += [
            ("why", item.why),
            ("help", item.help),
            ("more", f"mimo-launch explain {item.code}"),
        ]
        for name, text in notes:
            first, *rest = [
                filled(visible(line), width, _INDENT, _INDENT) for line in text.splitlines()
            ] or [""]
            if first:
                lines += [f"   = {name + ':':<5} {first}"]
                lines += [f"{' ' * _INDENT}{line}" for line in rest]
        return "\n".join(lines)

    def _excerpt(
        self, spans: Sequence[tuple[SourceSpan, str, str]], severity: str
    ) -> Iterator[str]:
        """Yield source lines in order, each with its underlines below it."""
        lines = self.source.lines
        shown = [span for span in spans if 1 <= span[0].line <= len(lines)]
        width = max(2, *(len(str(span.line)) for span, _, _ in shown)) if shown else 2
        for number in sorted({span.line for span, _, _ in shown}):
            here = sorted(
                (each for each in shown if each[0].line == number), key=lambda each: each[0].column
            )
            # Tabs would shift the caret.
            text, left_out = _window(lines[number - 1].replace("\t", " "), here[0][0].column)
            yield f"{number:>{width}} | {visible(text)}".rstrip()
            for span, label, sign in here:
                start = span.column - 1 - left_out
                if start >= len(text) and len(here) > 1:
                    continue  # Too far from the first place of this line.
                pad = " " * _columns(text[:start])
                length = max(1, _columns(text[start : start + span.length]))
                style = severity if sign == "^" else "place"
                underline = self._paint(sign * length + (f" {label}" if label else ""), style)
                yield f"{' ' * width} | {pad}{underline}"

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{_ANSI[style]}m{text}\x1b[0m" if self.color else text


def _window(line: str, column: int) -> tuple[str, int]:
    """Return the part of a line around a column, and the number of characters left out before."""
    if len(line) <= MAX_LINE:
        return line, 0
    first = min(max(0, column - 1 - _KEPT_BEFORE), len(line) - MAX_LINE)
    part = line[first : first + MAX_LINE]
    before, after = ("..." if first else ""), ("..." if first + MAX_LINE < len(line) else "")
    return f"{before}{part}{after}", first - len(before)


def _columns(text: str) -> int:
    """Return the number of terminal columns that `text` fills."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Return whether any diagnostic makes the spec unusable."""
    return any(item.severity is Severity.ERROR for item in diagnostics)
