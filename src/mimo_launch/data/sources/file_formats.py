"""The files of a spec's data, and the class that opens each one.

Decides: which files of a split there are, in which order; the format of a file, by its beginning;
the files of a folder: its records, not the media beside them.
Relies on: `shard_names` for patterns; a module per format.
Leaves: records to the formats.
"""

import json
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.data.sources.custom_records import CustomRecords
from mimo_launch.data.sources.fetching import Fetching, fetching_of
from mimo_launch.data.sources.json_files import JsonLines, JsonList, has_lists
from mimo_launch.data.sources.kept_files import kept_folders
from mimo_launch.data.sources.remote_files import DataPath
from mimo_launch.data.sources.shard_names import CustomSource, NamedShard, named_shards, shard_files
from mimo_launch.data.sources.source_file import KEPT, Recent, SourceFile
from mimo_launch.data.sources.tables import ArrowTable, ParquetTable
from mimo_launch.data.sources.tar_files import TarFile
from mimo_launch.diag.users_code import file_of
from mimo_launch.spec.files_data import CustomData, Source
from mimo_launch.spec.spec import FilesData, UserData, WebdatasetData
from mimo_launch.spec.user_data import patterns_of

# Imported for its type only: a spec is checked without numpy.
if TYPE_CHECKING:
    from mimo_launch.data.random_draws import Split

# The suffixes of files of records in a folder; a list of JSON must be named, because folders of
# data sets have settings in such files.
IN_FOLDERS = (".tar", ".jsonl", ".ndjson", ".parquet", ".arrow")
# Of these, files with a record in each line, which may be a list.
_OF_LINES = (".jsonl", ".ndjson")
# What `Dataset.save_to_disk` writes beside the files of a data set.
_STATE = "state.json"
Format = Callable[[NamedShard, Recent], SourceFile]
_TABLES: dict[bytes, Format] = {
    b"PAR1": ParquetTable,
    b"ARROW1": ArrowTable,
    b"\xff\xff\xff\xff": ArrowTable,
}


class NoFormat(ValueError):
    """A file is of no known format."""


def split_files(data: UserData, split: "Split", *, fetches: bool = False) -> list[NamedShard]:
    """Return the files of a split; with `fetches`, bytes may be fetched and rows copied.

    Raises: PatternError; SourceGone, NotFetched if addresses cannot be listed.
    """
    fetching = fetching_of(data, is_on=fetches)
    if isinstance(data, WebdatasetData):
        sets = {"": patterns_of(data.shards)} if split == "train" else data.heldout_sets
        return named_shards(chain.from_iterable(sets.values()), fetching)
    if isinstance(data, FilesData | CustomData):
        sources = data.sources if split == "train" else chain(*data.heldout_sets.values())
        found = [
            each
            for n, source in enumerate(sources)
            for each in source_files(source, n, fetching=fetching, runs=fetches)
        ]
        for shard in found if fetches else ():
            if shard.custom is not None:
                continue
            is_here = isinstance(shard.path, Path)
            cache = (fetching.cache.folder,)
            shard.kept = kept_folders(data.index, shard.path) if is_here else cache
        return found
    return []


def source_files(
    source: Source, number: int = 0, *, fetching: Fetching | None = None, runs: bool = False
) -> list[NamedShard]:
    """Return the files of a source with this number, or its class, which is called if it `runs`.

    Raises: PatternError.
    """
    media = shard_files(source.media or ())
    if source.kind is not None:
        custom = CustomSource(source.kind, source.options, runs)
        path, times = file_of(source.kind), source.epochs
        found = NamedShard(path, times, media=media, source=number, is_tar=False, custom=custom)
        return [replace(found, template=source.template)]
    return [
        replace(
            each,
            path=path,
            times=each.times * source.epochs,
            media=media,
            source=number,
            is_tar=False,
            template=source.template,
        )
        for each in named_shards(source.paths, fetching)
        for path in _files(each.path)
    ]


def _files(path: DataPath) -> Iterator[DataPath]:
    """Yield the files of records of a folder, or a path that is none. Raises: OSError."""
    if not isinstance(path, Path) or not path.is_dir():
        yield path
        return
    if (path / _STATE).is_file():
        yield from _saved(path)
        return
    for folder in (path, path / "data"):  # As on the Hugging Face Hub.
        found = sorted(each for each in folder.glob("*") if each.suffix in IN_FOLDERS)
        if found:
            yield from found
            return


def _saved(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder of `datasets`. Raises: NoFormat, OSError."""
    try:
        named = json.loads((folder / _STATE).read_text(encoding="utf-8"))["_data_files"]
        names = [str(each["filename"]) for each in named]
    except (ValueError, KeyError, TypeError) as error:
        raise NoFormat(f"{folder / _STATE} does not name the files of a data set") from error
    for name in names:
        if "/" in name or name.startswith("."):
            raise NoFormat(f"{folder / _STATE} names {name[:80]}, which is no file beside it")
        yield folder / name


def splits_in(path: Path) -> list[str]:
    """Return the parts of a source to name, if a folder holds several splits of a data set."""
    if (path / "dataset_dict.json").is_file():
        return sorted(str(each.parent) for each in path.glob(f"*/{_STATE}"))
    if not path.is_dir() or (path / _STATE).is_file():
        return []
    split = re.compile(r"(.+)-\d{5}-of-\d{5}")
    found = [(each, split.match(each.name)) for each in _files(path) if isinstance(each, Path)]
    names = sorted({str(each.parent / f"{name[1]}-*") for each, name in found if name})
    return names if len(names) > 1 else []


def is_table(path: DataPath) -> bool:
    """Return whether a file is one of those that pyarrow reads. Raises: OSError."""
    with suppress(NoFormat):
        return beginning(path).startswith(tuple(_TABLES))
    return False


def beginning(path: DataPath) -> bytes:
    """Return the first block of a file. Raises: OSError; NoFormat if it is a pipe or a device."""
    if isinstance(path, Path) and not (path.is_file() or path.is_dir()) and path.exists():
        # A pipe would have nothing to read for ever, and a device no end.
        raise NoFormat(f"{path} is a pipe or a device")
    with path.open("rb") as file:
        return file.read(tarfile.BLOCKSIZE)


def in_set(data: UserData, name: str, shards: Sequence[NamedShard]) -> list[bool]:
    """Return which files belong to a held-out set. Raises: PatternError."""
    if isinstance(data, WebdatasetData):
        found = named_shards(data.heldout_sets[name], fetching_of(data, is_on=True))
        named = {each for shard in found for each in (shard.path, *shard.others)}
        return [not named.isdisjoint((each.path, *each.others)) for each in shards]
    if isinstance(data, FilesData | CustomData):
        names = [own for own, sources in data.heldout_sets.items() for _ in sources]
        return [names[each.source] == name for each in shards]
    return []


def open_file(shard: NamedShard, recent: Recent | None = None) -> SourceFile:
    """Open a file, which keeps its last records in `recent`.

    Raises: OSError, NoFormat; CustomClassError for a user's class that cannot be used.
    """
    if shard.is_tar:
        return TarFile(shard.path)
    if shard.custom is not None:
        return CustomRecords(shard, shard.custom, recent or Recent(KEPT))
    return format_of(shard.path)(shard, recent or Recent(KEPT))


def format_of(path: DataPath) -> Format:
    """Return the class that opens a file, by its first bytes. Raises: OSError, NoFormat."""
    head = beginning(path)
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if begin.startswith(b"{"):
        return JsonLines
    if begin.startswith(b"["):
        return JsonLines if path.name.endswith(_OF_LINES) and has_lists(path) else JsonList
    for start, table in _TABLES.items():
        if head.startswith(start):
            return table
    try:
        if head.strip(b"\0"):
            tarfile.TarInfo.frombuf(head, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError as error:
        raise NoFormat(f"{path} holds no tar archive, JSON or table") from error
    return lambda shard, _: TarFile(shard.path)
