"""The files that patterns of shards name.

Decides: braces before globs, order by pattern and then by name; that a file counts as often as the
spec names it, under whatever names; how many files a pattern may name, and how many folders and
files a search may visit.
Relies on: `braces`.
Leaves: the contents of files to `tar_files`.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

from mimo_launch.data.webdataset.braces import PatternError, expanded

MAX_FILES = 200_000


@dataclass(slots=True)
class NamedShard:
    """A file by the first name in the spec, its other names, and how often it counts."""

    path: Path
    times: int = 0
    others: dict[Path, None] = field(default_factory=dict)


def named_shards(patterns: str | Iterable[str]) -> list[NamedShard]:
    """Return the shards that patterns name, each once; links and other paths name the same file.

    A file counts once for each name without `*`, `?` or `[`, whether it exists or not, and once for
    each pattern with one that it matches.
    Raises: PatternError.
    """
    found: dict[object, NamedShard] = {}
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        for name in expanded(pattern, MAX_FILES):
            here: dict[int, NamedShard] = {}
            for path in map(Path, sorted(_Search().names(name)) if has_magic(name) else [name]):
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
    return tuple(each.path for each in named_shards(patterns))


def _file(path: Path) -> object:
    """Return a value that is the same for all names of a file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return path
    return found.st_dev, found.st_ino


class _Search:
    """A `glob` with a limit on folder entries: `/**` matches all files of a host."""

    def __init__(self) -> None:
        self._left = MAX_FILES

    def names(self, pattern: str) -> Iterator[str]:
        """Yield the names that match a pattern with `*`, `?`, `[` or `**`."""
        root = "/" if pattern.startswith("/") else ""
        yield from self._below(root, [part for part in pattern.split("/") if part])

    def _below(self, folder: str, parts: list[str]) -> Iterator[str]:
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self._at_any_depth(folder, parts)
        elif not has_magic(part):
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
