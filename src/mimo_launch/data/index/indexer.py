"""Reads every sample of shards once for the index: tokens, sizes of images, faults.

Decides: which records the index leaves out, and which contents of a sample are ignored; how many
processes read shards, and when one is faster; that they exit with their parent.
Relies on: `sample_encoder` for tokens, headers of images and clips for sizes; no pixel is decoded.
Leaves: columns of the index to `columns`, where an index is kept, and which process makes it, to
`open_index`.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from zlib import crc32

from mimo_launch.data.dataset import READ_ERRORS, BadSample
from mimo_launch.data.index.columns import Bad, IndexedSample, ShardIndex, ShardRows
from mimo_launch.data.samples.decode_media import (
    Marker,
    clip_length,
    codes_shape,
    image_size,
    marker_of,
    medium_of,
)
from mimo_launch.data.samples.decode_video import sound_length, video_size
from mimo_launch.data.samples.media_rows import ShardInputs
from mimo_launch.data.samples.member_readers import MediumSize, ShownVideo
from mimo_launch.data.samples.records import TEXT_SUFFIXES, Record
from mimo_launch.data.samples.sample_encoder import SampleEncoder, SampleEncoders
from mimo_launch.data.samples.text_tokens import loss_mask_among, runs_of
from mimo_launch.data.samples.token_columns import TokenColumns
from mimo_launch.data.sources.file_formats import open_file
from mimo_launch.data.sources.media_suffixes import COLUMN, target_of
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.data.sources.source_file import BrokenFile, Member, Part, Recent
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.spec import Spec, UserData
from mimo_launch.spec.user_data import Template

# The size of an image is in its first bytes, unless a thumbnail or a profile comes before it.
_HEADS = (4096, 1 << 17)
_MOST_LISTED = 5
# Bytes of the records that an index looked at last: each is read several times in a row.
_KEPT = 16 << 20


@frozen
class _Media:
    """What the texts of a sample share: `sizes` are completed by the first of them."""

    suffixes: Sequence[str]
    members: dict[Marker, list[str]]
    unread: Sequence[str]
    videos: Sequence[ShownVideo]
    told: Mapping[Marker, Sequence[Sequence[int]]]
    sizes: dict[str, MediumSize]
    read: Callable[[str, int | None], bytes]


class SampleIndexer:
    """Reads samples for the index, for one spec."""

    def __init__(self, spec: Spec, data: UserData) -> None:
        """Load the tokenizer. Raises: TokenizerError, TemplateRefused, ProcessorError."""
        self.spec, self.data = spec, data
        self.inputs = ShardInputs(spec, data)
        self.sample_encoders = SampleEncoders(spec, data, self.inputs)
        self.columns = TokenColumns(spec)

    @staticmethod
    def _measured(members: Mapping[Marker, Sequence[str]], *, but: Container[str]) -> list[str]:
        """Return the members with a size of their own, in order; videos are told frame by frame."""
        found = chain.from_iterable(each for marker, each in members.items() if marker != "video")
        return [each for each in found if each not in but]

    def look(
        self,
        suffixes: list[str],
        read: Callable[[str, int | None], bytes],
        template: Template | None = None,
    ) -> list[IndexedSample]:
        """Return the index entry of a sample, or of each of its captions.

        Args:
            suffixes: Suffixes of its members.
            read: Returns the bytes of a member, or the requested number of its first bytes.
            template: That of its source, None if the source has none of its own.

        Raises:
            BadSample: It cannot be trained on.
        """
        columns = [each for each in self.columns.suffixes.values() if each in suffixes]
        members, unread = self._by_marker({*suffixes}.difference(TEXT_SUFFIXES, columns))
        encoder = self.sample_encoders.of(template)
        texts = [each for each in TEXT_SUFFIXES if each in suffixes]
        if "json" not in suffixes and not (encoder.reads_txt and "txt" in suffixes):
            unread += texts
            raise BadSample(f"it has no .json{' or .txt' * encoder.reads_txt}{_ignored(unread)}")
        records = encoder.read(lambda suffix: read(suffix, None) if suffix in suffixes else None)
        videos = [self._video(suffix, partial(read, suffix)) for suffix in members["video"]]
        told: dict[Marker, list[Sequence[int]]] = {"video": [video.told for video in videos]}
        sizes: dict[str, MediumSize] = {}
        if self.inputs.cuts_images:
            sizes = {each: self._size(each, partial(read, each)) for each in members["image"]}
            told["image"] = [
                [columns for columns, _ in self.inputs.pieces(size)] for size in sizes.values()
            ]
        media = _Media(suffixes, members, unread, videos, told, sizes, read)
        found = [
            self._entry(encoder, record, media, (number, len(records)))
            for number, record in enumerate(records)
        ]
        shared = set(map(_named, unread))
        if len(texts) > 1:
            shared.add(_named(*(each for each in texts if each != records[0].member)))
        # A sample is counted with its first caption.
        ignored = tuple(sorted(shared.union(*(each.ignored for each in found))))
        texts += (each for found in members.values() for each in found)
        checksum = _checksum([*texts, *columns], read)
        return [replace(each, ignored=ignored, checksum=checksum) for each in found]

    def _entry(
        self, encoder: SampleEncoder, record: Record, media: "_Media", place: tuple[int, int]
    ) -> IndexedSample:
        """Return the entry of a text, by its place and the number of texts of the sample."""
        members, sizes, read = media.members, media.sizes, media.read
        counts = {marker: len(found) for marker, found in members.items()}
        with _naming_text(*place):
            encoded = encoder.encode(record, counts, media.unread, media.told)
        # The first text has all media measured.
        for suffix in self._measured(members, but=sizes):
            sizes[suffix] = self._size(suffix, partial(read, suffix))
        num_text = len(encoded.tokens)
        with _naming_text(*place):
            placed = self.inputs.place(encoded.markers, num_text, members, sizes, media.videos)
            is_row = self.inputs.rows_among(num_text, [(each.module, each.span) for each in placed])
            loss_mask = loss_mask_among(encoded.loss_mask, is_row)
            if not loss_mask.any() and not members["target"]:
                raise BadSample("it has no token to learn from")
            columns = self.columns.read(
                media.suffixes, int(loss_mask.sum()), lambda suffix: read(suffix, None)
            )
        return IndexedSample(
            len(is_row),
            runs_of(loss_mask),
            placed,
            members,
            (*record.ignored, *encoded.ignored),
            columns=tuple(
                each for each in self.columns.suffixes.values() if each in media.suffixes
            ),
            counted=self.columns.counted(columns),
            caption=place[0],
        )

    def _by_marker(self, suffixes: Iterable[str]) -> tuple[dict[Marker, list[str]], list[str]]:
        """Return the media of a sample, in order, by marker, and the members that are not read."""
        members: dict[Marker, list[str]] = {"image": [], "audio": [], "video": [], "target": []}
        unread: list[str] = []
        for suffix in sorted(suffixes, key=place_of):
            marker = marker_of(suffix)
            if marker is None or not self.inputs.takes(marker, suffix):
                unread.append(suffix)
            else:
                members[marker].append(suffix)
        return members, unread

    def _size(self, suffix: str, read: Callable[[int | None], bytes]) -> MediumSize:
        if medium_of(suffix) == "audio":
            return clip_length(suffix, read(None))
        if medium_of(suffix) is None:
            return codes_shape(suffix, read(_HEADS[0]))
        size = header_size(suffix, read)
        self._refuse_large(suffix, *size)
        return size

    def _video(self, suffix: str, read: Callable[[int | None], bytes]) -> ShownVideo:
        data = read(None)
        size = video_size(suffix, data, self.data.video.rate)
        self._refuse_large(suffix, size.height, size.width)
        heard = self.inputs.hears_videos
        return self.inputs.shown_video(size, sound_length(suffix, data) if heard else None)

    def _refuse_large(self, suffix: str, height: int, width: int) -> None:
        pixels, most = height * width, self.data.max_image_pixels
        if pixels > most:
            raise BadSample(
                f"its .{suffix} has {width} x {height} = {pixels / 1e6:.1f} million pixels, "
                f"but `data.max_image_pixels` allows {most / 1e6:g} million"
            )


@contextmanager
def _naming_text(number: int, of: int) -> Iterator[None]:
    """Name the text in a BadSample if the sample has several."""
    try:
        yield
    except BadSample as error:
        raise BadSample(f"text {number + 1} of {of}: {error}" if of > 1 else str(error)) from error


def _ignored(suffixes: Sequence[str]) -> str:
    """Return a note on the unread members of a sample without a text, "" if there are none."""
    if not suffixes:
        return ""
    named = ", ".join(f".{each}" for each in suffixes[:_MOST_LISTED])
    more = f" and {len(suffixes) - _MOST_LISTED} more" if len(suffixes) > _MOST_LISTED else ""
    words = f"; its {named}{more} {'is' if len(suffixes) == 1 else 'are'} not read"
    if any(each.endswith((".json", ".txt")) for each in suffixes):
        words += ": a key ends at the first dot of a name, so write `_` for the dots of keys"
    return words


def _checksum(suffixes: Sequence[str], read: Callable[[str, int | None], bytes]) -> int:
    """Return the CRC-32 of texts and of the first bytes of media."""
    found = 0
    for suffix in suffixes:
        first = read(suffix, None if suffix in TEXT_SUFFIXES else _HEADS[0])
        found = crc32(suffix.encode() + b"\0" + first, found)
    return found


def header_size(suffix: str, read: Callable[[int | None], bytes]) -> MediumSize:
    """Return height and width of the upright image; `read` returns its first bytes.

    Raises: BadSample.
    """
    for limit in _HEADS:
        with suppress(BadSample):
            return image_size(suffix, read(limit))
    return image_size(suffix, read(None))


def place_of(suffix: str) -> tuple[int, str]:
    """Return a sort key for images of a sample: `jpg` before `1.jpg` before `10.jpg`."""
    if marker_of(suffix) == "target":
        return target_of(suffix)[1], suffix
    first = suffix.partition(".")[0]
    return (int(first) if first.isdecimal() else 0, suffix)


def _named(suffix: str) -> str:
    """Return a description of unread members of one kind."""
    if suffix.startswith(COLUMN):
        return f"column `{suffix.removeprefix(COLUMN).removesuffix('.npy')[:40]}`"
    return f"`.{suffix.rpartition('.')[2][:40]}`"


def index_part(indexer: SampleIndexer, number: int, shard: NamedShard, part: Part) -> ShardIndex:
    """Read every sample of a part of the file with this number."""
    rows, bad = ShardRows(number), list[Bad]()
    for _ in read_part(indexer, shard, part, rows, bad):
        pass
    return rows.index(bad)


def read_part(
    indexer: SampleIndexer, shard: NamedShard, part: Part, rows: ShardRows, bad: list[Bad]
) -> Iterator[Member]:
    """Append each sample of a part of a file to `rows` or `bad`, and yield it."""
    name = shard.path.name
    try:
        file = open_file(shard, Recent(_KEPT))
        for member in file.records(part):
            if member.fault:
                bad.append(Bad(name, member.key, member.fault))
                continue
            try:
                read = partial(file.read, member.places)
                entries = indexer.look(list(member.places), read, shard.template)
            except BadSample as error:
                bad.append(Bad(name, member.key, str(error)))
            except READ_ERRORS as error:
                bad.append(Bad(name, member.key, f"{type(error).__name__}: {error}"))
            else:
                for entry in entries:
                    rows.add(member, entry)
            yield member
    except (BrokenFile, OSError, ValueError) as error:
        bad.append(Bad(name, "", f"the rest of the file cannot be read: {error}"))


# With fewer bytes of shards, one process finishes before others have started. Most bytes of tar
# files are pixels, which are not read; a byte of text takes as long as `_TEXT` bytes of tar.
SMALL, _TEXT = 32 << 20, 16
# A sample of a user's data set takes as long as this many.
_CALL = 16 << 10
# The indexer of a worker process: made once, because a tokenizer loads slowly.
_INDEXERS: list[SampleIndexer] = []


def _start(spec: Spec) -> None:
    # Ctrl-C reaches the whole process group, but the parent stops its pool itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if isinstance(spec.data, UserData):
        _INDEXERS.append(SampleIndexer(spec, spec.data))


def _end_with_parent() -> None:
    """Exit when the parent is killed, which the queues of a pool do not notice."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _task(number: int, shard: NamedShard, part: Part) -> ShardIndex:
    return index_part(_INDEXERS[0], number, shard, part)


@frozen
class Task:
    """A part of a file with this number, which one process looks at."""

    number: int
    shard: NamedShard
    part: Part


def tasks_of(shards: Sequence[NamedShard]) -> list[Task]:
    """Return the parts of all files, in order; one of a file that cannot be read."""
    found = []
    for number, shard in enumerate(shards):
        parts: Sequence[Part] = (Part(),)
        with suppress(BrokenFile, OSError, ValueError):
            # A tar file, or one from elsewhere, is one part: they may be many, and slow to open.
            is_one = shard.is_tar or not isinstance(shard.path, Path)
            parts = parts if is_one else open_file(shard).parts()
        found += [Task(number, shard, part) for part in parts]
    return found


def is_small(tasks: Sequence[Task]) -> bool:
    """Return whether files are so small that one process reads them in no time."""
    paths = {each.shard.path for each in tasks if each.shard.custom is None}
    works = (path.stat().st_size * (1 if path.name.endswith(".tar") else _TEXT) for path in paths)
    called = sum(each.part.end - each.part.first for each in tasks if each.shard.custom is not None)
    return sum(works) + _CALL * called < SMALL


def indexed_parts(indexer: SampleIndexer, tasks: Sequence[Task]) -> Iterator[ShardIndex]:
    """Yield the index of each part in order, made by one process per processor.

    Raises: OSError if a process is killed.
    """
    given = [(each.number, each.shard, each.part) for each in tasks]
    workers = min(len(tasks), len(os.sched_getaffinity(0)))
    if workers <= 1 or is_small(tasks) or multiprocessing.current_process().daemon:
        yield from (index_part(indexer, *each) for each in given)
        return
    # Not "fork": this process may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start, initargs=(indexer.spec,)
    ) as pool:
        try:
            yield from pool.map(_task, *zip(*given, strict=True))
        except BrokenProcessPool as error:
            raise OSError("a process that made the index was killed; out of memory?") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
