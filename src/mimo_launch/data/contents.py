"""The contents of a data set's files, with which a resumed run checks that they have not changed.

Decides: what counts as a change: other samples, more or fewer, or another order. Names, paths and
times of files do not count.
Relies on: a data set for its `contents`.
Leaves: the decision to continue a run to `checkpoint.loading`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_MOST_LISTED = 5


@dataclass(frozen=True, slots=True)
class FileContents:
    """The samples of one file that training uses: their number, and a checksum of them in order.

    A sample has changed if its members or its length in tokens have.
    """

    name: str
    samples: int
    checksum: int


Contents = tuple[FileContents, ...]


def contents_from(found: Iterable[Any]) -> Contents:
    """Return the contents that were read from JSON. Raises: ValueError, TypeError."""
    rows = [(name, samples, checksum) for name, samples, checksum in found]
    if not all(type(a) is str and type(b) is int and type(c) is int for a, b, c in rows):
        raise ValueError("the contents of data are no names and counts")
    return tuple(FileContents(*row) for row in rows)


def changed_files(old: Contents, new: Contents) -> list[str]:
    """Return the differences between two contents as `file: old -> new`; empty if equal."""
    before, after = ([(each.samples, each.checksum) for each in files] for files in (old, new))
    if before == after:
        return []
    gone, come = Counter(before) - Counter(after), Counter(after) - Counter(before)
    if not gone and not come:
        return [f"order of files: {_names(old)} -> {_names(new)}"]
    lost, found = _chosen(old, gone), _chosen(new, come)
    changes = []
    for name in dict.fromkeys((*lost, *found)):
        left, right = lost.get(name), found.get(name)
        other = "other " * (left == right)
        changes.append(f"{name}: {_samples(left)} -> {_samples(right, other)}")
    more = len(changes) - _MOST_LISTED
    rest = [f"{more} more file{'s' * (more > 1)}: changed"] if more > 0 else []
    total = [f"samples: {sum(e.samples for e in old):,} -> {sum(e.samples for e in new):,}"]
    return [*changes[:_MOST_LISTED], *rest, *(total if len(changes) > 1 else [])]


def _chosen(files: Contents, wanted: Counter[tuple[int, int]]) -> dict[str, int]:
    """Return the number of samples of each `wanted` file, by name, in the order of `files`.

    `wanted` counts files by their samples and checksum; of several equal files, the last count.
    """
    left, chosen = Counter(wanted), Counter[str]()
    for each in reversed(files):
        if left[each.samples, each.checksum] > 0:
            left[each.samples, each.checksum] -= 1
            chosen[each.name] += each.samples
    return dict(reversed(chosen.items()))


def _samples(number: int | None, other: str = "") -> str:
    return "none" if number is None else f"{number:,} {other}sample{'s' * (number != 1)}"


def _names(files: Sequence[FileContents]) -> str:
    more = ", ..." * (len(files) > _MOST_LISTED)
    return ", ".join(each.name for each in files[:_MOST_LISTED]) + more
