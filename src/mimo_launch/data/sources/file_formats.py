"""The files of a spec's data, and the class that opens each one.

Decides: which files of a split there are, in which order; the format of a file, by its beginning;
the files of a folder: its records, not the media beside them.
Relies on: `shard_names` for patterns; a module per format.
Leaves: records to the formats.
"""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.data.sources.json_files import JsonLines, JsonList
from mimo_launch.data.sources.shard_names import NamedShard, named_shards
from mimo_launch.data.sources.source_file import SourceFile
from mimo_launch.data.sources.tar_files import TarFile
from mimo_launch.spec.spec import FilesData, UserData, WebdatasetData
from mimo_launch.spec.user_data import Source, patterns_of

# Imported for its type only: a spec is checked without numpy.
if TYPE_CHECKING:
    from mimo_launch.data.random_draws import Split

# The suffixes of files of records in a folder; a list of JSON must be named, because folders of
# data sets have settings in such files.
IN_FOLDERS = (".tar", ".jsonl", ".ndjson")


class NoFormat(ValueError):
    """A file is of no known format."""


def split_files(data: UserData, split: "Split") -> list[NamedShard]:
    """Return the files of a split. Raises: PatternError."""
    if isinstance(data, WebdatasetData):
        sets = {"": patterns_of(data.shards)} if split == "train" else data.heldout_sets
        return named_shards(chain.from_iterable(sets.values()))
    if isinstance(data, FilesData):
        sources = data.sources if split == "train" else chain(*data.heldout_sets.values())
        return [each for n, source in enumerate(sources) for each in source_files(source, n)]
    return []


def source_files(source: Source, number: int = 0) -> list[NamedShard]:
    """Return the files of a source with this number. Raises: PatternError."""
    media = tuple(map(Path, patterns_of(source.media or ())))
    return [
        replace(each, path=path, media=media, source=number, is_tar=False)
        for each in named_shards(patterns_of(source.path))
        for path in _files(each.path)
    ]


def _files(path: Path) -> Iterator[Path]:
    """Yield the files of records of a folder, or a path that is none."""
    if not path.is_dir():
        yield path
        return
    yield from (each for each in sorted(path.iterdir()) if each.suffix in IN_FOLDERS)


def in_set(data: UserData, name: str, shards: Sequence[NamedShard]) -> list[bool]:
    """Return which files belong to a held-out set. Raises: PatternError."""
    if isinstance(data, WebdatasetData):
        found = named_shards(data.heldout_sets[name])
        named = {each for shard in found for each in (shard.path, *shard.others)}
        return [not named.isdisjoint((each.path, *each.others)) for each in shards]
    if isinstance(data, FilesData):
        names = [own for own, sources in data.heldout_sets.items() for _ in sources]
        return [names[each.source] == name for each in shards]
    return []


def open_file(shard: NamedShard) -> SourceFile:
    """Open a file. Raises: OSError, NoFormat."""
    return TarFile(shard.path) if shard.is_tar else format_of(shard.path)(shard)


def format_of(path: Path) -> Callable[[NamedShard], SourceFile]:
    """Return the class that opens a file, by its first bytes. Raises: OSError, NoFormat."""
    with path.open("rb") as file:
        head = file.read(tarfile.BLOCKSIZE)
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if begin.startswith(b"{"):
        return JsonLines
    if begin.startswith(b"["):
        return JsonList
    try:
        if head.strip(b"\0"):
            tarfile.TarInfo.frombuf(head, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError as error:
        raise NoFormat(f"{path} holds no tar archive and no JSON") from error
    return lambda shard: TarFile(shard.path)
