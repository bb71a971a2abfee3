"""The files that patterns of shards name: braces as in bash, then globs.

Decides: braces before globs, order by pattern and then by name; that a file counts as often as the
spec names it, under whatever names; how many files a pattern may name, and how many folders and
files a search may visit; which braces are refused before any name is made.
Relies on: `braceexpand` for the names, as the webdataset library does; the count follows its rules.
Leaves: the contents of files to `file_formats`.
"""

import os
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import Any

from mimo_launch.data.sources.fetching import Fetching, is_address
from mimo_launch.data.sources.remote_files import DataPath, RemotePath, remote_names
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import path_fault
from mimo_launch.spec.user_data import Template

# The longest file name (Linux: NAME_MAX).
MAX_DIGITS = 255
# All names together, at about 300 letters each.
MAX_LETTERS = 64_000_000
MAX_DEPTH = 32
# As in `braceexpand`: ranges of letters run from A to Z, then from a to z.
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$")
_LETTER_RANGE = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?$")


class PatternError(ValueError):
    """A pattern cannot be expanded; the message says why, in one line."""


def expand(pattern: str, most: int) -> list[str]:
    """Return the names that a pattern with braces expands to, at most `most`.

    Raises: PatternError.
    """
    from braceexpand import braceexpand

    if num_names(pattern) > most:
        raise PatternError(f"its braces stand for more than {most:,} names")
    names, letters = [], 0
    for name in braceexpand(pattern):
        if fault := path_fault(name):
            raise PatternError(f"its braces make a name that cannot be: {fault}")
        letters += len(name)
        if letters > MAX_LETTERS:
            raise PatternError(f"its braces stand for names of more than {MAX_LETTERS:,} letters")
        names.append(name)
    return names


def num_names(pattern: str) -> int:
    """Return the number of names that a pattern expands to, without making them.

    Raises: PatternError.
    """
    depth = deepest = 0
    for _, sign in _signs(pattern):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        deepest = max(deepest, depth)
    if depth != 0:
        raise PatternError("its braces are not balanced")
    if deepest > MAX_DEPTH:
        raise PatternError(f"its braces are nested more than {MAX_DEPTH} deep")
    return _product(pattern)


def _signs(text: str) -> list[tuple[int, str]]:
    """Return braces and commas with their positions; a backslash escapes the next character."""
    found = re.finditer(r"\\.|[{},]", text, re.DOTALL)
    return [(each.start(), each[0]) for each in found if each[0][0] != "\\"]


def _product(text: str) -> int:
    """Return the product of the counts of all braces in a text that is not itself a list."""
    number, depth, start = 1, 0, 0
    for place, sign in _signs(text):
        if sign == "{":
            start = place + 1 if depth == 0 else start
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                number *= _inside(text[start:place])
    return number


def _inside(text: str) -> int:
    """Return the number of alternatives of the text between two braces."""
    if found := _NUMBERS.match(text):
        if max(len(each or "") for each in found.groups()) > MAX_DIGITS:
            raise PatternError(f"a number in its braces has more than {MAX_DIGITS} digits")
        first, last = int(found[1]), int(found[2])
    elif found := _LETTER_RANGE.match(text):
        first, last = _LETTERS.index(found[1]), _LETTERS.index(found[2])
    else:
        # Alternatives are separated by commas outside inner braces.
        number = depth = start = 0
        for place, sign in _signs(text):
            depth += {"{": 1, "}": -1}.get(sign, 0)
            if sign == "," and depth == 0:
                number += _product(text[start:place])
                start = place + 1
        return number + _product(text[start:])
    return abs(last - first) // (int(found[3] or 1) or 1) + 1


MAX_FILES = 200_000


@frozen
class CustomSource:
    """A data set of a user's own, as a source names it; it is not called if not `runs`."""

    kind: str
    options: Mapping[str, Any]
    runs: bool


@dataclass(slots=True)
class NamedShard:
    """A file by the first name in the spec, its other names, and how often it counts.

    `media` are the folders that its records may name files in, `source` is the number of its source
    in the spec, and `is_tar` says that the spec asks for a tar file, whatever it is. `kept` are the
    folders in which copies of its rows may be kept, none if none are made. `template` is that of
    its source, None if it has none of its own. `custom` is a user's class in place of a file; then
    `path` is the file that defines it.
    """

    path: DataPath
    times: int = 0
    others: dict[DataPath, None] = field(default_factory=dict)
    media: tuple[Path, ...] = ()
    source: int = 0
    is_tar: bool = True
    kept: tuple[Path, ...] = ()
    template: Template | None = None
    custom: CustomSource | None = None


def named_shards(
    patterns: str | Iterable[str], fetching: Fetching | None = None
) -> list[NamedShard]:
    """Return the shards that patterns name, each once; links and other paths name the same file.

    A file counts once for each name without `*`, `?` or `[`, whether it exists or not, and once for
    each pattern with one that it matches. Addresses are fetched as `fetching` says.
    Raises: PatternError; SourceGone, NotFetched if addresses cannot be listed.
    """
    found: dict[object, NamedShard] = {}
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        for name in expand(pattern, MAX_FILES):
            here: dict[int, NamedShard] = {}
            for path in _paths(name, fetching):
                shard = found.setdefault(_file(path), NamedShard(path))
                here[id(shard)] = shard
                if path != shard.path:
                    shard.others[path] = None
            for shard in here.values():
                shard.times += 1
            if len(found) > MAX_FILES:
                raise PatternError(f"it names more than {MAX_FILES:,} files")
    return list(found.values())


def shard_files(patterns: str | Iterable[str]) -> tuple[Path, ...]:
    """Return the files of `named_shards`. Raises: PatternError."""
    return tuple(each.path for each in named_shards(patterns) if isinstance(each.path, Path))


def _paths(name: str, fetching: Fetching | None) -> list[DataPath]:
    """Return the files that a name without braces matches."""
    if fetching is None or not is_address(name):
        return [*map(Path, sorted(_Glob().names(name)) if has_magic(name) else [name])]
    # An HTTP server lists no names, and the `?` of an address may begin a query.
    is_listed = has_magic(name) and not name.lower().startswith("http")
    names = remote_names(name, fetching) if is_listed else [name]
    return [RemotePath(each, fetching) for each in names]


def _file(path: DataPath) -> object:
    """Return a value that is the same for all names of a file."""
    if isinstance(path, RemotePath):
        return path
    try:
        found = path.stat()
    except (OSError, ValueError):
        return path
    return found.st_dev, found.st_ino


class _Glob:
    """A `glob` with a limit on folder entries: `/**` matches all files of a host."""

    def __init__(self) -> None:
        self._left = MAX_FILES

    def names(self, pattern: str) -> Iterator[str]:
        """Yield the names that match a pattern with `*`, `?`, `[` or `**`.

        A folder or a file with `[` in its name is taken as it is.
        """
        root = "/" if pattern.startswith("/") else ""
        yield from self._below(root, [part for part in pattern.split("/") if part])

    def _below(self, folder: str, parts: list[str]) -> Iterator[str]:
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self._at_any_depth(folder, parts)
        # `chats [v2]` is a name if it is there, as `*` and `?` also match themselves.
        elif not has_magic(part) or ("[" in part and os.path.lexists(folder + part)):
            if rest:
                yield from self._below(f"{folder}{part}/", rest)
            elif os.path.lexists(folder + part):
                yield folder + part
        else:
            for name, is_folder in self._entries(folder, hidden=part.startswith(".")):
                if fnmatchcase(name, part):
                    if not rest:
                        yield folder + name
                    elif is_folder:
                        yield from self._below(f"{folder}{name}/", rest)

    def _at_any_depth(self, folder: str, parts: list[str]) -> Iterator[str]:
        if rest := parts[1:]:
            yield from self._below(folder, rest)
        for name, is_folder in self._entries(folder):
            if is_folder:
                yield from self._at_any_depth(f"{folder}{name}/", parts)
            elif not rest:
                yield folder + name

    def _entries(self, folder: str, *, hidden: bool = False) -> list[tuple[str, bool]]:
        """Return the names in a folder, and which are folders; nothing if it cannot be read."""
        found: list[tuple[str, bool]] = []
        try:
            with os.scandir(folder or ".") as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        reason = f"more than {MAX_FILES:,} files and folders would be looked at"
                        raise PatternError(f"{reason} for it")
                    if hidden or not entry.name.startswith("."):
                        found.append((entry.name, entry.is_dir()))
        except OSError:
            return []
        return found
