"""The index of shards: made once, kept next to them, and made again when it is out of date.

Decides: which process makes it: one per host, while the others wait for its lock.
Relies on: `find_index` for one that is up to date, `indexer` for the samples of shards, `columns`
for files; renaming a folder is atomic.
Leaves: samples of an index to `open_split`.
"""

import errno
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from mimo_launch.data.index.columns import (
    BLOCKS,
    Columns,
    ColumnWriter,
    ShardIndex,
    count_ignored,
    write_bad,
)
from mimo_launch.data.index.find_index import (
    folders_of,
    identity_of,
    name_of,
    opened_if_usable,
    usable_index,
)
from mimo_launch.data.index.indexer import SampleIndexer, Task, indexed_parts, is_small, tasks_of
from mimo_launch.data.index.kept_parts import KeptParts
from mimo_launch.data.random_draws import Split
from mimo_launch.data.sources.file_formats import split_files
from mimo_launch.data.sources.kept_files import locked, writable
from mimo_launch.data.sources.remote_files import RemotePath
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.diag.frozen import frozen

# The version of the rule that cuts files into parts.
PARTS = 2


@frozen
class IndexProgress:
    """The progress of making the index of a split; `why` is the reason for making it."""

    split: Split
    why: str
    done: int
    shards: int
    samples: int
    bad: int


Say = Callable[[IndexProgress], None]


def open_index(indexer: SampleIndexer, split: Split, say: Say) -> Columns:
    """Return the index of a split, making it if there is none or if it is out of date.

    Any number of processes may call this concurrently. `say` gets the progress of making it.

    Raises: OSError if a shard cannot be read, or the index cannot be written.
    """
    shards = split_files(indexer.data, split, fetches=True)
    wanted = identity_of(indexer.spec, indexer.data, indexer.inputs, shards)
    if (found := usable_index(indexer.data, wanted, shards)) is not None:
        return found
    folder = writable(folders_of(indexer.data, shards)) / name_of(wanted)
    folder.parent.mkdir(parents=True, exist_ok=True)
    now = IndexProgress(split, "another process does it, waiting", 0, len(shards), 0, 0)
    with locked(folder.with_suffix(".lock"), partial(say, now)):
        # The process that held the lock may have made the index.
        columns, why = opened_if_usable(folder, wanted)
        if columns is None:
            _make(indexer, shards, folder, wanted, replace(now, why=why), say)
            columns, why = opened_if_usable(folder, wanted)
    if columns is None:
        raise OSError(f"the index in {folder} cannot be read: {why}")
    return columns


def _make(
    indexer: SampleIndexer,
    shards: Sequence[NamedShard],
    folder: Path,
    identity: dict[str, Any],
    progress: IndexProgress,
    say: Say,
) -> None:
    """Make an index in a temporary folder, then rename the folder."""
    made = _beside(folder)
    made.mkdir()
    suffixes: dict[str, int] = {}
    samples, bad, ignored = 0, [], Counter[str]()
    kept: KeptParts | None = None
    try:
        writer = ColumnWriter(made)
        try:
            tasks = tasks_of(shards)
            if not is_small(tasks):
                kept = KeptParts(folder.with_suffix(".parts"), {**identity, "parts": PARTS})
            progress = replace(progress, shards=len(tasks))
            say(progress)
            for done, found in enumerate(_parts(indexer, tasks, kept), start=1):
                numbers = [suffixes.setdefault(each, len(suffixes)) for each in found.suffixes]
                members = found.columns["member_suffix"]
                renumbered = np.array(numbers, dtype=members.dtype)[members]
                writer.append({**found.columns, "member_suffix": renumbered})
                samples += found.num_samples
                bad += [asdict(each) for each in found.bad]
                count_ignored(ignored, found.ignored)
                say(replace(progress, done=done, samples=samples, bad=len(bad)))
            write_bad(made, bad)
            meta = {"suffixes": list(suffixes), "num_bad": len(bad), "ignored": ignored}
            meta |= _write_blocks(made, shards)
            writer.finish({"identity": identity, **meta})
            if kept is not None:
                kept.remove()
        finally:
            writer.close()
        # Remove an old index; keep a newer one that another process made.
        if folder.exists():
            old = _beside(folder)
            with suppress(FileNotFoundError):  # Another process did the same.
                folder.rename(old)
                shutil.rmtree(old, ignore_errors=True)
        try:
            made.rename(folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_blocks(made: Path, shards: Sequence[NamedShard]) -> dict[str, Any]:
    """Write the checksums of fetched blocks, to compare later reads; return where files end."""
    found = [
        each.path.checksums() if isinstance(each.path, RemotePath) else np.zeros(0, "u4")
        for each in shards
    ]
    if not any(map(len, found)):
        return {}
    np.save(made / BLOCKS, np.concatenate(found))
    return {"block_ends": np.cumsum([len(each) for each in found]).tolist()}


def _parts(
    indexer: SampleIndexer, tasks: Sequence[Task], kept: KeptParts | None
) -> Iterator[ShardIndex]:
    """Yield the index of each part in order: one that was kept, or a new one, which is kept."""
    if kept is None:
        yield from indexed_parts(indexer, tasks)
        return
    found = [kept.load(number) is not None for number in range(len(tasks))]
    new = indexed_parts(indexer, [t for t, there in zip(tasks, found, strict=True) if not there])
    for number, there in enumerate(found):
        part = kept.load(number) if there else next(new)
        if part is None:  # Another process removed it, where there are no locks.
            part = next(indexed_parts(indexer, [tasks[number]]))
        if not there:
            kept.keep(number, part)
        yield part


def _beside(folder: Path) -> Path:
    """Return a unique path next to a folder that other processes may be reading."""
    return folder.with_name(f"{folder.name}.{uuid4().hex[:12]}")
