"""Formats ranks, axes, sizes and times as short text.

Decides: how numbers and ranges are written in tables, findings and reports.
Relies on: nothing.
Leaves: the text around them to its callers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
MAX_RUNS = 4


def ranks_text(ranks: Sequence[int]) -> str:
    """Return increasing ranks as `0-3`, `0,2,5`, or `0,8,..2040 (256 ranks)` if there are many."""
    runs = as_ranges(ranks)
    if len(runs) <= MAX_RUNS:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    head = ",".join(str(rank) for rank in ranks[:2])
    return f"{head},..{ranks[-1]} ({len(ranks)} ranks)"


def named_ranks(ranks: Sequence[int]) -> str:
    """Return increasing ranks with their noun: `rank 4`, `ranks 0-3`."""
    return f"rank{'s' * (len(ranks) != 1)} {ranks_text(ranks)}"


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 sample`, `2 samples`, `3 microbatches`."""
    plural = "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}{plural * (number != 1)}"


def as_ranges(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the (first, last) of each run of consecutive numbers."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def some(items: Sequence[T], most: int, *, sep: str, text: Callable[[T], str] = str) -> str:
    """Return the first `most` items as text, and the number of omitted items."""
    more = len(items) - most
    return sep.join(map(text, items[:most])) + (f"{sep}and {more} more" if more > 0 else "")


def span_text(first: int, last: int) -> str:
    """Return `3` or `0-3`."""
    return str(first) if first == last else f"{first}-{last}"


def sizes_text(grid: Mapping[Any, int]) -> str:
    """Return the axes of a grid that are larger than 1."""
    return " ".join(f"{axis} {size}" for axis, size in grid.items() if size > 1) or "1 rank"


def listed(words: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def coords_text(coords: dict[str, int]) -> str:
    """Return (tp, cp, dp, pp) of a rank."""
    return f"({', '.join(str(coords[axis]) for axis in ('tp', 'cp', 'dp', 'pp'))})"


def percent(share: float) -> str:
    """Return a share as a whole percentage."""
    return f"{100 * share:.0f}%"


def role_text(role: Sequence[str]) -> str:
    """Return what a rank holds: `vision + language.1,3`; stage 0 has no number."""
    held: dict[str, list[str]] = {}
    for part in role:
        module, _, stage = part.rpartition(".")
        held.setdefault(module, []).append(stage)
    return " + ".join(f"{m}.{','.join(s)}".removesuffix(".0") for m, s in held.items()) or "idle"


def bytes_text(size: int) -> str:
    """Return a size with three digits: `20.8 GB`."""
    return scaled(size, "B")


def scaled(value: float, unit: str = "") -> str:
    """Return a quantity with three digits and a decimal prefix: `2.28 G`, `106 TFLOP`."""
    for power, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{figure(value / power)} {prefix}{unit}"
    return f"{figure(value)} {unit}".rstrip()


def tokens_text(number: int) -> str:
    """Return a number of tokens as `plan --tokens` takes it: `500B`, `1.5T`, `800`."""
    for power, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= power:
            return f"{number / power:,.4g}{letter}" if number < 1e15 else f"{number / power:,.0f}T"
    return str(number)


def figure(value: float) -> str:
    """Return a number with three digits, or more before the point."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def seconds_text(seconds: float) -> str:
    """Format a duration with three digits: `3.23 s`, `66.9 ms`."""
    return f"{figure(seconds)} s" if seconds >= 1 else f"{figure(1000 * seconds)} ms"


def duration_text(seconds: float) -> str:
    """Return a time as `0:07`, `12:34`, `1:02:03` or `3 d 04:05 h`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02}:{minutes:02} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
