"""Formats diagnostics as rows for programs: what `validate --json` prints.

Decides: the fields of a row.
Relies on: a `SpecSource` for places.
Leaves: text for people to `text`.
"""

from collections.abc import Sequence
from typing import Any

from mimo_launch.diag.diagnostic import Diagnostic, SourcePlace, SpecSource


def to_json(diagnostics: Sequence[Diagnostic], source: SpecSource) -> list[dict[str, Any]]:
    """Return one plain row per diagnostic, in order of place."""
    return [_row(item, source) for item in source.sorted(tuple(diagnostics))]


def _row(item: Diagnostic, source: SpecSource) -> dict[str, Any]:
    related = [
        {**_place_fields(source.place(other.path)), "label": other.label} for other in item.related
    ]
    return {
        "code": item.code,
        "severity": item.severity.value,
        "headline": item.headline,
        "file": source.name,
        **_place_fields(source.place_of(item)),
        "path": list(item.path),
        "why": item.why,
        "help": item.help,
        "related": related,
    }


def _place_fields(place: SourcePlace) -> dict[str, Any]:
    span = place.span
    return {
        "line": span.line if span else None,
        "column": span.column if span else None,
        "length": span.length if span else None,
        "set": place.override,
    }
