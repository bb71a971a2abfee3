"""The index of shards: made once, kept next to them, and made again when it is out of date.

Decides: where it is kept, what it depends on, and which process makes it: one per host, while the
others wait for its lock.
Relies on: `indexer` for the samples of shards, `columns` for files; renaming a folder is atomic.
Leaves: samples of an index to `open_split`.
"""

import errno
import hashlib
import json
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
    DamagedIndex,
    ShardIndex,
    count_ignored,
    open_columns,
    read_meta,
    write_bad,
)
from mimo_launch.data.index.indexer import SampleIndexer, Task, indexed_parts, is_small, tasks_of
from mimo_launch.data.index.kept_parts import KeptParts
from mimo_launch.data.random_draws import Split
from mimo_launch.data.samples.media_rows import ShardInputs
from mimo_launch.data.samples.token_columns import TokenColumns
from mimo_launch.data.sources.custom_records import custom_set
from mimo_launch.data.sources.fetching import NotFetched
from mimo_launch.data.sources.file_formats import split_files
from mimo_launch.data.sources.kept_files import kept_folders, locked, writable
from mimo_launch.data.sources.remote_files import RemotePath, ask_for_states
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.vocabulary import placeholder_id
from mimo_launch.processors.files import TOKENIZER
from mimo_launch.processors.image_texts import image_text
from mimo_launch.processors.tokenizer import chat_sources, special_texts
from mimo_launch.spec.spec import Spec, UserData

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
    wanted = _identity(indexer.spec, indexer.data, indexer.inputs, shards)
    if (found := _found(indexer.data, wanted, shards)) is not None:
        return found
    folder = writable(_kept(indexer.data, shards)) / _name(wanted)
    folder.parent.mkdir(parents=True, exist_ok=True)
    now = IndexProgress(split, "another process does it, waiting", 0, len(shards), 0, 0)
    with locked(folder.with_suffix(".lock"), partial(say, now)):
        # The process that held the lock may have made the index.
        columns, why = _usable(folder, wanted)
        if columns is None:
            _make(indexer, shards, folder, wanted, replace(now, why=why), say)
            columns, why = _usable(folder, wanted)
    if columns is None:
        raise OSError(f"the index in {folder} cannot be read: {why}")
    return columns


def find_index(spec: Spec, data: UserData, inputs: ShardInputs, split: Split) -> Columns | None:
    """Return the index of a split if there is one that is up to date; make none.

    Raises: OSError if a shard cannot be read.
    """
    shards = split_files(data, split)
    return _found(data, _identity(spec, data, inputs, shards), shards)


def _found(data: UserData, wanted: dict[str, Any], shards: Sequence[NamedShard]) -> Columns | None:
    """Return the first index that is up to date."""
    tried = (_usable(folder / _name(wanted), wanted) for folder in _kept(data, shards))
    return next((columns for columns, _ in tried if columns is not None), None)


def _kept(data: UserData, shards: Sequence[NamedShard]) -> tuple[Path, ...]:
    return kept_folders(data.index, shards[0].path)


def _name(wanted: dict[str, Any]) -> str:
    """Return the name of a folder, which identifies the settings of an index."""
    settings = json.dumps([wanted["names"], wanted["settings"]], sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def _identity(
    spec: Spec, data: UserData, inputs: ShardInputs, shards: Sequence[NamedShard]
) -> dict[str, Any]:
    """Return everything an index depends on: settings, and the state of files.

    The tokens of markers follow from it, so a tokenizer need not be loaded to find an index.
    """
    folder = Path(data.tokenizer)
    with suppress(NotFetched):
        ask_for_states([each.path for each in shards])
    tokenizer = hashlib.sha256((folder / TOKENIZER).read_bytes())
    texts = [chat_sources(folder), special_texts(folder)]
    tokenizer.update(json.dumps([*texts, *(image_text(folder) or ())]).encode())
    is_here = any(isinstance(each.path, Path) for each in shards)
    media = [[str(folder) for folder in each.media] for each in shards]
    customs = [each.custom and [each.custom.kind, each.custom.options] for each in shards]
    columns = TokenColumns(spec).asked
    templates = [each.template and each.template.model_dump(mode="json") for each in shards]
    identity = {
        "names": [str(each.path.absolute()) for each in shards],
        "settings": {
            # An index of files from elsewhere may come from another host.
            **({"tokenizer": str(folder.absolute())} if is_here else {}),
            "template": data.template and data.template.model_dump(mode="json"),
            "said": [data.image_marker, data.audio_marker, data.video_marker],
            "placeholders": [placeholder_id(spec, name) for name in inputs.in_text],
            "target": data.target_marker if inputs.makes else None,
            "inputs": inputs.sizing,
            "max_image_pixels": data.max_image_pixels,
            "max_characters": data.max_characters,
            **({"media": media} if any(media) else {}),
            **({"templates": templates} if any(templates) else {}),
            **({"custom": customs} if any(customs) else {}),
            **({"columns": columns} if columns else {}),
        },
        "shards": [_state(each) for each in shards],
        "tokenizer": tokenizer.hexdigest(),
    }
    found: dict[str, Any] = json.loads(json.dumps(identity))  # As it will be read back.
    return found


def _state(shard: NamedShard) -> list[int | str] | None:
    """Return size and time of a file, and of a user's data set its length and version, too.

    None if they are unknown, and no network may be used and no class called.
    """
    with suppress(NotFetched):
        found, more = shard.path.stat(), list[int | str]()
        if shard.custom is not None:
            made = custom_set(shard.custom)
            more = [made.samples, made.version]
        return [found.st_size, found.st_mtime_ns, *more]
    return None


def _usable(folder: Path, wanted: dict[str, Any]) -> tuple[Columns | None, str]:
    """Return an index if it exists and is up to date, or None and why it must be made."""
    try:
        meta = read_meta(folder)
        have = meta["identity"]
        if have["tokenizer"] != wanted["tokenizer"]:
            return None, "the tokenizer has changed"
        for name, old, new in zip(wanted["names"], have["shards"], wanted["shards"], strict=True):
            if old != new and new is not None:
                return None, f"{Path(name).name} has changed"
        return open_columns(folder, meta), ""
    except FileNotFoundError:
        return None, "no index yet"
    except (DamagedIndex, KeyError, TypeError, ValueError) as error:
        return None, f"the index is damaged: {error}"


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
        if part is None:
            raise OSError("a part of the index was removed while it was read")
        if not there:
            kept.keep(number, part)
        yield part


def _beside(folder: Path) -> Path:
    """Return a unique path next to a folder that other processes may be reading."""
    return folder.with_name(f"{folder.name}.{uuid4().hex[:12]}")
