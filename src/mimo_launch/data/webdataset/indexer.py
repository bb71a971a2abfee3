"""Reads every sample of a shard once for the index: tokens, sizes of images, faults.

Decides: what the index holds of a sample, and which records it leaves out.
Relies on: `sample_encoder` for tokens, headers of images and clips for sizes; no pixel is decoded.
Leaves: files of the index to `index_columns`, reading many shards to `index`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.decode_media import (
    Marker,
    clip_length,
    codes_shape,
    image_size,
    marker_of,
    medium_of,
)
from mimo_launch.data.webdataset.decode_video import video_size
from mimo_launch.data.webdataset.index_columns import (
    LISTS,
    SAMPLES,
    TILING,
    TYPES,
    Column,
    numbers_of,
)
from mimo_launch.data.webdataset.media_rows import (
    PlacedMedium,
    ShardInputs,
)
from mimo_launch.data.webdataset.member_readers import MediumSize, ShownVideo
from mimo_launch.data.webdataset.records import TEXT_SUFFIXES, read_record
from mimo_launch.data.webdataset.sample_encoder import SampleEncoder, loss_mask_among
from mimo_launch.data.webdataset.tar_files import (
    BrokenShard,
    Member,
    MemberPlace,
    ShardReader,
    samples_of,
    target_of,
)
from mimo_launch.spec.spec import CaptionTemplate, Spec, WebdatasetData

# The size of an image is in its first bytes, unless a thumbnail or a profile comes before it.
_HEADS = (4096, 1 << 17)
_MOST_LISTED, _MOST_IGNORED = 5, 1000


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that is left out; with an empty key, the rest of the shard."""

    shard: str
    key: str
    why: str


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The samples of one shard as columns whose `*_end` count from 0, and its bad records.

    `member_suffix` is a place in `suffixes`. `ignored` counts the samples by what they have that is
    not read.
    """

    columns: dict[str, Column]
    suffixes: tuple[str, ...]
    bad: tuple[Bad, ...]
    ignored: Counter[str]

    @property
    def num_samples(self) -> int:
        """Good samples."""
        return len(self.columns["tokens"])


@dataclass(frozen=True, slots=True)
class IndexedSample:
    """What the index holds of one sample.

    `runs` are start and end of each run of learned tokens, [runs, 2]. `members` are the suffixes of
    its images, clips and targets, in order. `ignored` is what it has that is not read. `checksum`
    is of its text and the first bytes of these.
    """

    num_tokens: int
    runs: np.ndarray
    placed: list[PlacedMedium]
    members: dict[Marker, list[str]]
    ignored: tuple[str, ...] = ()
    checksum: int = 0


class SampleIndexer:
    """Reads samples for the index, for one spec."""

    def __init__(self, spec: Spec, data: WebdatasetData) -> None:
        """Load the tokenizer. Raises: TokenizerError, TemplateRefused, ProcessorError."""
        self.spec, self.data = spec, data
        self.inputs = ShardInputs(spec, data)
        self.sample_encoder = SampleEncoder(spec, data, self.inputs)
        template = data.template
        self.reads_txt = isinstance(template, CaptionTemplate) and template.text is None

    def look(self, suffixes: list[str], read: Callable[[str, int | None], bytes]) -> IndexedSample:
        """Return what the index holds of a sample.

        Args:
            suffixes: Suffixes of its members.
            read: Returns the bytes of a member, or as many of its first bytes as asked for.

        Raises:
            BadSample: It cannot be trained on.
        """
        members: dict[Marker, list[str]] = {"image": [], "audio": [], "video": [], "target": []}
        unread: list[str] = []
        for suffix in sorted(set(suffixes).difference(TEXT_SUFFIXES), key=place_of):
            marker = marker_of(suffix)
            if marker is None or not self.inputs.takes(marker, suffix):
                unread.append(suffix)
            else:
                members[marker].append(suffix)
        if "json" not in suffixes and not (self.reads_txt and "txt" in suffixes):
            unread += [each for each in TEXT_SUFFIXES if each in suffixes]
            raise BadSample(f"it has no .json{' or .txt' * self.reads_txt}{_ignored(unread)}")
        record = read_record(
            self.data,
            lambda suffix: read(suffix, None) if suffix in suffixes else None,
            videos=self.inputs.reads_videos,
        )
        counts = {marker: len(found) for marker, found in members.items()}
        videos = [self._video(suffix, partial(read, suffix)) for suffix in members["video"]]
        told: dict[Marker, list[Sequence[int]]] = {"video": [video.told for video in videos]}
        sizes: dict[str, MediumSize] = {}
        if self.inputs.cuts_images:
            sizes = {each: self._size(each, partial(read, each)) for each in members["image"]}
            told["image"] = [self.inputs.pieces(size) for size in sizes.values()]
        encoded = self.sample_encoder.encode(record, counts, unread, told)
        num_text = len(encoded.tokens)
        sizes |= {
            suffix: self._size(suffix, partial(read, suffix))
            for marker, found in members.items()
            for suffix in found
            if marker != "video" and suffix not in sizes
        }
        placed = self.inputs.place(encoded.markers, num_text, members, sizes, videos)
        is_row = self.inputs.rows_among(num_text, [(each.module, each.span) for each in placed])
        loss_mask = loss_mask_among(encoded.loss_mask, is_row)
        if not loss_mask.any() and not members["target"]:
            raise BadSample("it has no token to learn from")
        runs = np.flatnonzero(np.diff(loss_mask, prepend=False, append=False)).reshape(-1, 2)
        ignored = {*record.ignored, *encoded.ignored, *map(_named, unread)}
        if len(texts := [each for each in TEXT_SUFFIXES if each in suffixes]) > 1:
            ignored.add(_named(*(each for each in texts if each != record.member)))
        checksum = _checksum(
            [*texts, *(each for found in members.values() for each in found)], read
        )
        return IndexedSample(len(is_row), runs, placed, members, tuple(sorted(ignored)), checksum)

    def _size(self, suffix: str, read: Callable[[int | None], bytes]) -> MediumSize:
        if medium_of(suffix) == "audio":
            return clip_length(suffix, read(None))
        if medium_of(suffix) is None:
            return codes_shape(suffix, read(_HEADS[0]))
        size = header_size(suffix, read)
        self._refuse_large(suffix, *size)
        return size

    def _video(self, suffix: str, read: Callable[[int | None], bytes]) -> ShownVideo:
        size = video_size(suffix, read(None), self.data.video.rate)
        self._refuse_large(suffix, size.height, size.width)
        return self.inputs.shown_video(size)

    def _refuse_large(self, suffix: str, height: int, width: int) -> None:
        pixels, most = height * width, self.data.max_image_pixels
        if pixels > most:
            raise BadSample(
                f"its .{suffix} has {width} x {height} = {pixels / 1e6:.1f} million pixels, "
                f"but `data.max_image_pixels` allows {most / 1e6:g} million"
            )


def _ignored(suffixes: Sequence[str]) -> str:
    """Return which members of a sample without a text are not read, if there are any."""
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
    """Return height and width of an image turned upright; `read` returns its first bytes.

    Raises: BadSample.
    """
    for limit in _HEADS:
        with suppress(BadSample):
            return image_size(suffix, read(limit))
    return image_size(suffix, read(None))


def place_of(suffix: str) -> tuple[int, str]:
    """Return a key that sorts images of a sample: `jpg` before `1.jpg` before `10.jpg`."""
    if marker_of(suffix) == "target":
        return target_of(suffix)[1], suffix
    first = suffix.partition(".")[0]
    return (int(first) if first.isdecimal() else 0, suffix)


def _named(suffix: str) -> str:
    """Return words for members of one kind that are not read."""
    return f"`.{suffix.rpartition('.')[2][:40]}`"


def index_shard(indexer: SampleIndexer, number: int, path: Path) -> ShardIndex:
    """Read every sample of the shard with this number."""
    rows = _Rows(number)
    bad: list[Bad] = []
    reader = ShardReader((path,))
    try:
        for member in samples_of(path):
            if member.fault:
                bad.append(Bad(path.name, member.key, member.fault))
                continue

            def read(
                suffix: str, limit: int | None, places: dict[str, MemberPlace] = member.places
            ) -> bytes:
                return reader.read(0, places[suffix], limit)

            try:
                seen = indexer.look(list(member.places), read)
            except BadSample as error:
                bad.append(Bad(path.name, member.key, str(error)))
            except (OSError, EOFError, ValueError) as error:
                bad.append(Bad(path.name, member.key, f"{type(error).__name__}: {error}"))
            else:
                rows.add(member, seen)
    except (BrokenShard, OSError) as error:
        bad.append(Bad(path.name, "", f"the rest of the shard cannot be read: {error}"))
    columns = {name: np.array(rows.values[name], dtype=TYPES[name]) for name in TYPES}
    return ShardIndex(columns, tuple(rows.suffixes), tuple(bad), rows.ignored)


def count_ignored(counts: Counter[str], more: Mapping[str, int]) -> None:
    """Add counts, those of what comes after many kinds together: keys may differ by sample."""
    for name, number in more.items():
        known = name in counts or len(counts) < _MOST_IGNORED
        counts[name if known else "other keys"] += number


class _Rows:
    """The columns of a shard with this number, as they grow by its samples."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.values: dict[str, list[int]] = defaultdict(list)
        self.suffixes: dict[str, int] = {}
        self.ignored: Counter[str] = Counter()

    def add(self, member: Member, seen: IndexedSample) -> None:
        """Append one sample."""
        rows, runs = self.values, seen.runs
        count_ignored(self.ignored, dict.fromkeys(seen.ignored, 1))
        kept = [
            suffix
            for suffix in (*TEXT_SUFFIXES, *(s for found in seen.members.values() for s in found))
            if suffix in member.places
        ]
        num_labels = int((runs[:, 1] - runs[:, 0]).sum())
        sizes = str([member.places[suffix].size for suffix in kept])
        content = crc32(sizes.encode(), seen.checksum)
        per_sample = (seen.num_tokens, num_labels, self.number, content)
        for name, value in zip(SAMPLES, per_sample, strict=True):
            rows[name].append(value)
        for suffix in kept:
            rows["member_offset"].append(member.places[suffix].offset)
            rows["member_size"].append(member.places[suffix].size)
            rows["member_suffix"].append(self.suffixes.setdefault(suffix, len(self.suffixes)))
        for each in seen.placed:
            rows["span_module"].append(each.module)
            rows["span_member"].append(each.member)
            rows["span_position"].append(each.span.position)
            rows["span_height"].append(each.span.height)
            rows["span_width"].append(each.span.width)
            rows["span_reads"].append(each.span.reads or 0)
            rows["span_later"].append(0 if each.span.later is None else each.span.later + 1)
            rows["span_told"].append(each.told)
            rows["span_loose"].append(each.span.loose)
            for name, value in zip(TILING, numbers_of(each.span.shown), strict=True):
                rows[name].append(value)
        for first, last in runs.tolist():
            rows["run_first"].append(first)
            rows["run_last"].append(last)
        rows["key_byte"] += member.key.encode("utf-8", "surrogateescape")
        for name, columns in LISTS.items():
            rows[f"{name}_end"].append(len(rows[next(iter(columns))]))
