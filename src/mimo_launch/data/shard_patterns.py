"""Which files the patterns of `shards:` name, and which suffixes are images and clips.

Decides: braces before globs, order by pattern and then by name; how many files a pattern may name,
and how many folders and files may be looked at for it.
Relies on: the file system; `braceexpand`, which the webdataset library uses for the same.
Leaves: what is in the files to `data.webdataset`.
"""

import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

# The suffixes of images with Pillow's names of their formats. Files of other formats are refused.
IMAGE_FORMATS = {
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "avif": "AVIF",
    "bmp": "BMP",
    "gif": "GIF",
    "tif": "TIFF",
    "tiff": "TIFF",
    "jp2": "JPEG2000",
    "ppm": "PPM",
    "pgm": "PPM",
}
AUDIO_SUFFIXES = frozenset({"wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "au", "caf"})
MAX_FILES = 200_000
_INNER_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.-?(\d{1,18}))?")


class PatternError(ValueError):
    """A pattern cannot be expanded; the message says why, in one line."""


def shard_files(patterns: str | Iterable[str]) -> tuple[Path, ...]:
    """Return the shards that patterns name, whether they are there or not, each once.

    A name without `*`, `?` or `[` stands for itself. Raises: PatternError.
    """
    found: dict[str, None] = {}
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        for name in _without_braces(pattern):
            found.update(
                dict.fromkeys(sorted(_Search().names(name)) if has_magic(name) else [name])
            )
            if len(found) > MAX_FILES:
                raise PatternError(f"it names more than {MAX_FILES:,} files")
    return tuple(Path(name) for name in found)


def _without_braces(pattern: str) -> list[str]:
    from braceexpand import braceexpand

    # At most so many names: ranges and alternatives multiply, also where they only add up.
    number, left = 1, pattern
    while (inner := _INNER_BRACES.search(left)) is not None:
        found = _RANGE.fullmatch(inner[1])
        if found is None:
            number *= inner[1].count(",") + 1
        else:
            first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
            number *= abs(last - first) // max(1, step) + 1
        if number > MAX_FILES:
            raise PatternError(f"its braces stand for more than {MAX_FILES:,} names")
        left = left[: inner.start()] + left[inner.end() :]
    try:
        return list(braceexpand(pattern))
    except (ValueError, RecursionError) as error:
        raise PatternError("its braces do not match") from error


class _Search:
    """What `glob` does, for a bounded number of folder entries: `/**` names all files there are."""

    def __init__(self) -> None:
        self._left = MAX_FILES

    def names(self, pattern: str) -> Iterator[str]:
        """Yield the names that a pattern with `*`, `?`, `[` or `**` stands for."""
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
        """Return what is in a folder, and whether it is a folder; nothing if it cannot be read."""
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
