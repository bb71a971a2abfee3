"""Files of JSON: a record in each line, or all in one list.

Decides: where a record begins and ends, without reading the whole file at once; that a record is
named by its line, counted from 1, or by its place in the list, counted from 0.
Relies on: `record_shapes` for what a record says, `media_folders` for the files that it names.
Leaves: the meaning of the text to `samples.records`.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from io import BufferedReader
from itertools import chain

from mimo_launch.data.sources.media_folders import MAX_RECORD, ShapedRecords
from mimo_launch.data.sources.named_media import BadRecord
from mimo_launch.data.sources.record_shapes import ShapedRecord, shaped
from mimo_launch.data.sources.remote_files import DataPath
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.data.sources.source_file import (
    BrokenFile,
    Member,
    MemberPlace,
    Part,
    Places,
    Recent,
    SourceFile,
    opened,
)

# Bytes that one process looks at, and bytes that are read at once.
PART, _BLOCK = 4 << 20, 4 << 20
_MARK = b"\xef\xbb\xbf"


class JsonLines(SourceFile):
    """A file with a record in each line; the place of a record is its offset in the file."""

    def __init__(self, shard: NamedShard, recent: Recent) -> None:
        """Open it. Raises: OSError."""
        self._path, self._file = shard.path, (file := opened(shard.path))
        self._records = ShapedRecords(shard, lambda place: _shaped(file.bytes_at(place)), recent)

    def parts(self) -> Sequence[Part]:
        """Return parts that begin with a line. Raises: OSError."""
        found, begin, number = [], 0, 0
        with self._path.open("rb") as file:
            while block := file.read(PART):
                lines = block.count(b"\n")
                if not block.endswith(b"\n"):
                    lines += sum(piece.endswith(b"\n") for piece in _line(file))
                found.append(Part(begin, file.tell(), number))
                begin, number = file.tell(), number + lines
        return found or (Part(),)

    def records(self, part: Part) -> Iterator[Member]:
        """Yield the records of a part. Raises: OSError."""
        number = part.number
        with self._path.open("rb") as file:
            file.seek(part.first)
            while (begin := file.tell()) != part.end and (text := file.readline(MAX_RECORD)):
                number += 1
                if len(text) == MAX_RECORD and not text.endswith(b"\n"):
                    for _ in _line(file):
                        pass
                    fault = f"it has more than {MAX_RECORD:,} bytes"
                    yield Member(f"line {number}", fault=fault)
                elif text.strip():
                    place = MemberPlace(begin, len(text))
                    yield self._member(f"line {number}", place, text)

    def _member(self, key: str, place: MemberPlace, text: bytes) -> Member:
        return self._records.member(key, place, lambda: _shaped(text))

    def share(self, places: Places) -> float:
        """Return the share of the file up to the end of a record. Raises: OSError."""
        text = places["json"]
        return (text.offset + text.size) / self._path.stat().st_size

    def fetch(self, places: Places, suffixes: Collection[str]) -> None:
        """Fetch a record. Raises: SourceGone, OSError."""
        del suffixes  # Media are in its text, or in local files.
        self._file.fetch([places["json"]])

    def read(self, places: Places, suffix: str, limit: int | None = None) -> bytes:
        """Return the text of a record, or a medium. Raises: OSError, EOFError, BadRecord."""
        return self._records.read(places, suffix, limit)


class JsonList(JsonLines):
    """A file with one list of records."""

    def parts(self) -> Sequence[Part]:
        """Return parts that begin with a record. Raises: OSError, BrokenFile."""
        if self._path.stat().st_size <= PART:
            return (Part(),)
        begins, last = [(0, 0)], 0
        for number, (offset, _) in enumerate(_elements(self._path, 0, -1)):
            if offset - last >= PART:
                begins.append((offset, number))
                last = offset
        ends = [begin for begin, _ in begins[1:]] + [-1]
        return [Part(begin, end, n) for (begin, n), end in zip(begins, ends, strict=True)]

    def records(self, part: Part) -> Iterator[Member]:
        """Yield the records of a part. Raises: BrokenFile, OSError."""
        found = _elements(self._path, part.first, part.end)
        for number, (offset, text) in enumerate(found, start=part.number):
            yield self._member(f"record {number}", MemberPlace(offset, len(text)), text)


def has_lists(path: DataPath) -> bool:
    """Return whether each of the first two lines of a file is a list. Raises: OSError."""
    with path.open("rb") as file:
        first, second = file.readline(PART).strip(), file.readline(PART).strip()
    return first.endswith(b"]") and second.startswith(b"[")


def _line(file: BufferedReader) -> Iterator[bytes]:
    """Yield the rest of a line in pieces."""
    while piece := file.readline(_BLOCK):
        yield piece
        if piece.endswith(b"\n"):
            return


def _shaped(text: bytes) -> ShapedRecord:
    """Return a record from its text. Raises: BadRecord."""
    try:
        found = json.loads(text.removeprefix(_MARK))
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"it is no JSON: {error}") from error
    return shaped(found)


def _elements(path: DataPath, first: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and text of the elements of a list that begin in a part of a file.

    Raises: BrokenFile, OSError.
    """
    # Bytes are read as one character each, so that places in the text are places in the file.
    decode, at = json.JSONDecoder().raw_decode, 0
    with path.open("rb") as file:
        file.seek(first)
        text = file.read(_BLOCK).decode("latin-1")
        if first == 0:
            at = text.find("[") + 1
        while True:
            while at < len(text) and text[at] in " \t\r\n,":
                at += 1
            offset = first + at
            if offset == end:
                return
            if text[at : at + 1] == "]":
                rest = chain(
                    [text[at + 1 :].encode("latin-1")], iter(partial(file.read, _BLOCK), b"")
                )
                if any(block.strip() for block in rest):
                    raise BrokenFile(
                        f"after byte {offset + 1:,}: another text follows its list; write all "
                        "records into one list, or each into a line"
                    )
                return
            try:
                _, stop = decode(text, at)
            except (ValueError, RecursionError) as error:
                more = file.read(max(_BLOCK, len(text) - at)).decode("latin-1")
                if not more or len(text) - at > MAX_RECORD:
                    what = "the list does not end" if at == len(text) else str(error)
                    raise BrokenFile(f"after byte {offset:,}: {what}") from error
                first, text, at = offset, text[at:] + more, 0
                continue
            yield offset, text[at:stop].encode("latin-1")
            at = stop
