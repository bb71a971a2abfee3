"""A data set of a user's own as a file of records: sample N is the record with that number.

Decides: what a class must offer, and the words for one that does not; that it is called by one
thread at a time; that a sample that raises an error is a bad record.
Relies on: `diag.users_code` for importing; `record_shapes` for what a sample says.
Leaves: the files that samples name to `media_folders`.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from mimo_launch.data.sources.fetching import NotFetched
from mimo_launch.data.sources.media_folders import ShapedRecords
from mimo_launch.data.sources.named_media import BadRecord
from mimo_launch.data.sources.record_shapes import ShapedRecord, shaped
from mimo_launch.data.sources.shard_names import CustomSource, NamedShard
from mimo_launch.data.sources.source_file import (
    Member,
    MemberPlace,
    Part,
    Places,
    Recent,
    SourceFile,
)
from mimo_launch.diag.users_code import CustomClassError, failed, import_named, named_place
from mimo_launch.spec.spec import CustomData, Data, FilesData

# Samples that one process looks at, and those that are asked for twice.
PART, _TWICE = 1 << 10, 3


class CustomSet:
    """A user's data set: its length, its version, and samples by number."""

    def __init__(self, named: Callable[..., Any], kind: str, options: Mapping[str, Any]) -> None:
        """Call a class. Raises: CustomClassError."""
        self._kind, self._lock = kind, threading.Lock()
        where = _where(kind)
        try:
            self._made = named(**options)
        except Exception as error:
            raise CustomClassError(f"{where} calling it {failed(error)}") from error
        for method in ("__len__", "__getitem__"):
            if not hasattr(type(self._made), method):
                raise CustomClassError(f"{where} {named_place(named)} has no method `{method}`")
        try:
            self.samples = len(self._made)
        except Exception as error:
            raise CustomClassError(f"{where} its `__len__` {failed(error)}") from error
        self.version = str(getattr(self._made, "version", ""))

    def sample(self, number: int) -> ShapedRecord:
        """Return a sample. Raises: BadRecord with the line that failed."""
        try:
            with self._lock:
                found: Any = self._made[number]
        except Exception as error:
            raise BadRecord(f"`{self._kind}` {failed(error)}") from error
        if not isinstance(found, Mapping):
            where = named_place(type(self._made).__getitem__)
            raise BadRecord(
                f"{where} returned {type(found).__name__}; a sample is a dict, such as "
                '`{"messages": [...], "images": [...]}`'
            )
        return shaped(dict(found))

    def refuse_other_samples(self) -> None:
        """Raise CustomClassError if the first samples differ when they are asked for again."""
        for number in range(min(_TWICE, self.samples)):
            try:
                one, other = self.sample(number), self.sample(number)
            except BadRecord:
                continue  # It becomes a bad sample.
            if one != other:
                where = named_place(type(self._made).__getitem__)
                raise CustomClassError(
                    f"the data set `{self._kind}`: {where} returned another sample when it was "
                    f"asked for sample {number} again; draw random numbers from the number, as in "
                    "`random.Random(number)`"
                )


def custom_set(source: CustomSource) -> CustomSet:
    """Return the data set that a source names, which is called once in a process.

    Raises: CustomClassError; NotFetched if the class may not run.
    """
    if not source.runs:
        raise NotFetched(f"`{source.kind}` is not called by this command")
    named = import_named(source.kind, _where(source.kind))
    # A forked process has files and locks of its own.
    return _called(named, source.kind, json.dumps(source.options, sort_keys=True), os.getpid())


@lru_cache(maxsize=64)
def _called(named: Callable[..., Any], kind: str, options: str, process: int) -> CustomSet:
    del process
    return CustomSet(named, kind, json.loads(options))


def _where(kind: str) -> str:
    return f"the data set `{kind}`:"


def check_custom_data(data: Data) -> None:
    """Call the class of every data set of a user's own, and ask for its first samples twice.

    Raises: CustomClassError.
    """
    for source in custom_sources(data):
        custom_set(source).refuse_other_samples()


def custom_sources(data: Data) -> Iterator[CustomSource]:
    """Yield the data sets of a user's own that a spec names."""
    if isinstance(data, FilesData | CustomData):
        for source in chain(data.sources, *data.heldout_sets.values()):
            if source.kind is not None:
                yield CustomSource(source.kind, source.options, runs=True)


class CustomRecords(SourceFile):
    """The samples of a user's data set; the place of a record is its number."""

    def __init__(self, shard: NamedShard, source: CustomSource, recent: Recent) -> None:
        """Import the class, and call it. Raises: CustomClassError, NotFetched."""
        self._set = custom_set(source)
        made = self._set.sample
        # Several sources may have the same file, and their records the same numbers.
        self._records = ShapedRecords(
            shard, lambda place: made(place.offset), recent, key=(source.kind, str(source.options))
        )

    def parts(self) -> Sequence[Part]:
        """Return ranges of samples."""
        ends = [*range(PART, self._set.samples, PART), self._set.samples]
        return [Part(first, end, first) for first, end in zip([0, *ends], ends, strict=False)]

    def records(self, part: Part) -> Iterator[Member]:
        """Yield the samples of a part."""
        stop = self._set.samples if part.end < 0 else part.end
        for number in range(part.first, stop):
            read = partial(self._set.sample, number)
            yield self._records.member(f"sample {number}", MemberPlace(number, 0), read)

    def share(self, places: Places) -> float:
        """Return the share of the samples up to this one."""
        return (places["json"].offset + 1) / self._set.samples

    def read(self, places: Places, suffix: str, limit: int | None = None) -> bytes:
        """Return the text of a sample, or a medium. Raises: OSError, BadRecord."""
        return self._records.read(places, suffix, limit)
