"""Places of the rows of images, clips, videos and targets in a sample.

Decides: that every image goes to every image encoder, every clip to every audio encoder, and every
video, as a series of images, to the encoder that reads videos; that their rows, or the rows of
connectors, replace the marker, module after module in the order of language's sources; the tokens
from which a target is made.
Relies on: `member_readers` for the rows of each member.
Leaves: reading members to `shard_samples`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.decode_media import Marker, Medium
from mimo_launch.data.samples.member_readers import (
    ClipReader,
    ImageReader,
    MediumSize,
    ShownVideo,
)
from mimo_launch.data.samples.readers import CutReader, readers_of
from mimo_launch.data.shared_images import ImageSize, made_together, size_made, spans_to_make
from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.processors.files import TokenizerError
from mimo_launch.processors.frame_sampling import VideoSize
from mimo_launch.processors.image_texts import line_break
from mimo_launch.processors.sound_of_videos import interleaved
from mimo_launch.processors.tokenizer import token_id
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import ChatTemplate, Spec, UserData, Videos

# The images of one marker: for each, a function from modules to sizes, how much later it is, and
# the number from which its text is written.
_Images = list[tuple[Callable[[str], ImageSize], int | None, int]]


@frozen
class PlacedMedium:
    """Rows of one module in a sample; `member` is the index of their image, clip or video.

    The text around them is written from `told`: for a temporal patch its time in tenths of a
    second or, if videos are heard, 1 if this one is; for a tile the columns of its grid.
    """

    module: int
    member: int
    span: ImageSpan
    told: int = 0


class ShardInputs:
    """The inputs that the modules of a spec take from a sample of shards.

    `names` are all modules except language; an index numbers them. `in_text` maps each module that
    language reads to the media from which its rows are made. `line_break` is the token between two
    lines of the rows of an image, if there is one.
    """

    def __init__(self, spec: Spec, data: UserData) -> None:
        """Prepare the readers. Raises: ProcessorError, TokenizerError."""
        self._spec, self._most_reads = spec, data.target_reads
        self.names = (*spec.encoders, *spec.generators)
        self.readers = {each.module: each for each in readers_of(spec)}
        images = [r for r in self.readers.values() if isinstance(r, ImageReader)]
        self._video_reader = next((each for each in images if each.videos), None)
        self._videos = None if self._video_reader is None else self._video_reader.videos
        clips = [r for r in self.readers.values() if isinstance(r, ClipReader)]
        self._hearer = next((each for each in clips if each.of_videos), None)
        self._cutter = next((each for each in images if isinstance(each, CutReader)), None)
        self.in_text = {name: self._media(name) for name in spec.sources_of(LANGUAGE)}
        folder = Path(data.tokenizer)
        chats = [isinstance(each, ChatTemplate) for each in data.templates]
        text = line_break(folder) if any(chats) else None
        if text is not None and not all(chats):
            raise TokenizerError(
                f"the processor in {folder} writes {text} between the lines of an image in "
                "conversations, but not in captions: write one kind of `template` for all sources"
            )
        self.line_break = None if text is None else token_id(folder, text)
        if self.reads_videos and self.line_break is not None:
            raise TokenizerError(
                f"the processor in {folder} writes {text} between the lines of an image, which is "
                "not done for videos: delete `video` of the encoder"
            )
        self._together = {name: tuple(made_together(spec, name)) for name in self.in_text}
        self._added = [
            (name, spec.sources_of(name))
            for name, module in spec.encoders.items()
            if not kind_of(module.model).reading.in_turn
        ]
        self._generators = [each for each in self.readers.values() if each.makes]

    @property
    def makes(self) -> bool:
        """Whether a generator learns to make targets."""
        return bool(self._generators)

    @property
    def sizing(self) -> list[object]:
        """The settings that place and count rows; an index with other settings is out of date."""
        connectors = [
            [name, kind.reading.rows_of_each, kind.reading.in_turn, *self._spec.sources_of(name)]
            for name in self.names
            if name not in self.readers and (kind := kind_of(self._spec.modules[name].model))
        ]
        read = [each.sizing for each in self.readers.values()]
        makes = [len(self._generators), self._most_reads] if self._generators else []
        lines = [] if self.line_break is None else [self.line_break]
        return [list(self.names), list(self.in_text), read, connectors, makes, *lines]

    @property
    def reads_videos(self) -> bool:
        """Whether an encoder reads videos."""
        return self._video_reader is not None

    @property
    def cuts_images(self) -> bool:
        """Whether an image becomes several, each with its own place."""
        return self._cutter is not None

    def pieces(self, size: MediumSize) -> list[tuple[int, MediumSize]]:
        """Return `told` and size of each image that one image becomes. Raises: BadSample."""
        return [(0, size)] if self._cutter is None else self._cutter.pieces(size)

    @property
    def tellers(self) -> dict[Marker, int]:
        """By marker, the number of the module whose spans say `told` of its images and videos."""
        readers: dict[Marker, ImageReader | None]
        readers = {"video": self._video_reader, "image": self._cutter}
        return {m: self.names.index(each.module) for m, each in readers.items() if each}

    @property
    def says_time(self) -> Videos | None:
        """The settings of videos, if the time of each temporal patch is in the text."""
        videos = self._videos
        return videos.videos if videos is not None and videos.videos.in_text else None

    @property
    def hears_videos(self) -> bool:
        """Whether an encoder hears the sound of videos."""
        return self._hearer is not None

    def takes(self, marker: Marker, suffix: str) -> bool:
        """Return whether a module takes a member: a video, or a target that it learns to make."""
        if marker == "target":
            return any(each.members({"target": [suffix]}) for each in self._generators)
        return marker != "video" or self.reads_videos

    def shown_video(self, size: VideoSize, sound: MediumSize | None = None) -> ShownVideo:
        """Return what is shown of a video, and the rows of its sound. Raises: BadSample."""
        if self._video_reader is None:
            raise TypeError("no module reads videos")
        shown = self._video_reader.shown(size)
        if self._hearer is None or sound is None:
            return shown
        heard = self._hearer.sized(sound, alone=False)
        return replace(shown, sound=heard, told=(1,) * len(shown.told))

    def place(
        self,
        markers: Sequence[tuple[int, Marker]],
        num_text: int,
        members: Mapping[Marker, Sequence[str]],
        sizes: Mapping[str, MediumSize],
        videos: Sequence[ShownVideo] = (),
    ) -> list[PlacedMedium]:
        """Return the places of rows in a sample, and the tokens from which targets are made.

        A single target without a marker follows the text.

        Args:
            markers: Images, clips, videos and targets in order, each with the text token that it
                precedes. If the text says the time, a marker is a temporal patch of a video; if
                images are cut, a tile.
            num_text: Number of text tokens.
            members: Suffixes of images, clips, videos and targets, in order.
            sizes: Sizes of all of these except videos.
            videos: The parts of videos that are shown.

        Raises:
            BadSample: An image or a clip makes no row, or a target has no place.
        """
        placed: list[PlacedMedium] = []
        rows_so_far = after_target = targets = 0
        parts: dict[Marker, Iterator[tuple[int, _Images]]] = {
            "image": self._pieces(members.get("image", ()), sizes, is_cut=self.cuts_images),
            "audio": self._pieces(members.get("audio", ()), sizes, is_cut=False),
            "video": self._parts(videos, len(members.get("image", ()))),
        }
        for before, marker in (*markers, *self._at_end(markers, num_text, members)):
            at = before + rows_so_far
            if marker == "target":
                placed += self._targets(targets, range(after_target, at), members, sizes)
                targets, after_target = targets + 1, at
                continue
            number, images = next(parts[marker])
            video = videos[number - len(members.get("image", ()))] if marker == "video" else None
            if video is not None and video.sound is not None:
                whole = self._with_sound(video, number, at, members)
                placed += whole
                rows_so_far += sum(each.span.rows for each in whole)
                continue
            for name, media in self.in_text.items():
                for size_of, later, told in images if marker in media else ():
                    here = self._made(name, size_of, at, later)
                    placed += (PlacedMedium(self.names.index(n), number, s, told) for n, s in here)
                    end = here[0][1].end
                    at, rows_so_far = end, rows_so_far + end - at
        return placed

    def _with_sound(
        self, video: ShownVideo, number: int, at: int, members: Mapping[Marker, Sequence[str]]
    ) -> list[PlacedMedium]:
        """Return the places of the temporal patches of a video, and of its sound among them."""
        seeing, hearing, sound = self._video_reader, self._hearer, video.sound
        if seeing is None or seeing.videos is None or hearing is None or sound is None:
            raise TypeError("a video that is not heard")
        placed, parts = list[PlacedMedium](), list[tuple[int, int]]()
        module = self.names.index(seeing.module)
        times = [later or 0 for later in video.later]
        for patches, heard in interleaved(times, sound.rows, seeing.videos.places_of_chunk):
            for patch in patches:
                size = video.rows[patch]
                span = ImageSpan(at, size.height, size.width, later=video.later[patch])
                placed.append(PlacedMedium(module, number, span, video.told[patch]))
                at += span.rows
            if heard:
                parts.append((at, len(heard)))
                at += len(heard)
        clip = ImageSpan(parts[0][0], 1, sound.rows, later=0, loose=sound.loose, parts=(*parts,))
        # Clips come before the sound of videos.
        member = number - len(members.get("image", ())) + len(members.get("audio", ()))
        return [*placed, PlacedMedium(self.names.index(hearing.module), member, clip)]

    def _pieces(
        self, suffixes: Sequence[str], sizes: Mapping[str, MediumSize], *, is_cut: bool
    ) -> Iterator[tuple[int, _Images]]:
        """Yield the number of an image or clip, and the images of each of its markers.

        A marker is for the whole image or for a tile.
        """
        for number, suffix in enumerate(suffixes):
            size = sizes[suffix]
            for told, shown in self.pieces(size) if is_cut else [(0, size)]:
                size_of = partial(self._size_of, shown, len(suffixes) == 1)
                yield number, [(size_of, None, told)]

    def _parts(self, videos: Sequence[ShownVideo], first: int) -> Iterator[tuple[int, _Images]]:
        """Yield the number of a video, from `first` on, and the images of each of its markers.

        A marker is for the whole video or for a temporal patch.
        """
        for number, video in enumerate(videos, first):
            sizes = [partial(_same, each) for each in video.rows]
            shown: _Images = list(zip(sizes, video.later, video.told, strict=True))
            for part in [[each] for each in shown] if self.says_time else [shown]:
                yield number, part

    def rows_among(
        self, num_text: int, spans: Sequence[tuple[int, ImageSpan]]
    ) -> npt.NDArray[np.bool_]:
        """Return which tokens of a sample belong to images, bool [tokens].

        These are rows and the tokens between their lines. The sample has `num_text` text tokens.
        `spans` are of all modules, with their numbers.
        """
        in_text = [span for number, span in spans if self.names[number] in self.in_text]
        inside = [part for span in in_text for part in span.covered]
        found = np.zeros(num_text + sum(map(len, inside)), dtype=np.bool_)
        for part in inside:
            found[part.start : part.stop] = True
        return found

    def gap(self, name: str) -> int:
        """Return the number of tokens between two lines of the rows of a module."""
        return int(self.line_break is not None and "image" in self.in_text.get(name, ()))

    def holds_text(self, name: str) -> bool:
        """Return whether the text of a module's video continues after its last time."""
        reader, videos = self.readers.get(name), self._videos
        return reader is self._video_reader and videos is not None and videos.videos.holds_text

    def hears(self, name: str) -> bool:
        """Return whether a module hears the sound of videos."""
        return self._hearer is not None and name == self._hearer.module

    def shares_bounds(self, name: str) -> bool:
        """Return whether the tokens around a video share positions if a module hears its sound."""
        videos = self._videos
        return self.hears(name) and videos is not None and videos.places_of_chunk is not None

    def _media(self, name: str) -> tuple[Medium, ...]:
        if (reader := self.readers.get(name)) is None:
            # `checks` refuses modules that see both images and clips.
            return self._media(self._spec.sources_of(name)[0])
        media: tuple[Medium, ...] = (reader.medium or "image",)
        return (*media, "video") if reader is self._video_reader else media

    def _size_of(self, size: MediumSize, alone: bool, name: str) -> ImageSize:
        return self.readers[name].sized(size, alone=alone)

    def _made(
        self, name: str, size_of: Callable[[str], ImageSize], at: int, later: int | None
    ) -> list[tuple[str, ImageSpan]]:
        """Return the rows of an image for a module that language reads and for upstream modules."""
        for added, sources in self._added:
            if added in self._together[name]:
                numbers = {each: size_made(self._spec, each, size_of).rows for each in sources}
                if len(set(numbers.values())) > 1:
                    made = " and ".join(f"`{each}` makes {n}" for each, n in numbers.items())
                    raise BadSample(f"`{added}` adds rows to each other, but of its image {made}")
        found = []
        for each in self._together[name]:
            rows = size_of(each) if each in self.readers else size_made(self._spec, each, size_of)
            span = ImageSpan(at, rows.height, rows.width, later=later, loose=rows.loose)
            found.append((each, replace(span, gap=self.gap(each), shown=rows.shown)))
        return found

    def _at_end(
        self,
        markers: Sequence[tuple[int, Marker]],
        num_text: int,
        members: Mapping[Marker, Sequence[str]],
    ) -> list[tuple[int, Marker]]:
        """Return the place of a target without a marker.

        Raises: BadSample if markers and targets differ in number.
        """
        asked = sum(marker == "target" for _, marker in markers)
        most = 0
        for reader in self._generators:
            have = len(reader.members(members))
            most = max(most, have)
            if have and have != (asked or 1):
                raise BadSample(f"it has {_targets(have)} for `{reader.module}` and {_for(asked)}")
        if asked and not most:
            raise BadSample(f"it has {_targets(0)} and {_for(asked)}")
        return [(num_text, "target")] if most and not asked else []

    def _targets(
        self,
        number: int,
        before: range,
        members: Mapping[Marker, Sequence[str]],
        sizes: Mapping[str, MediumSize],
    ) -> Iterator[PlacedMedium]:
        """Yield each generator's target with this number, made from the last tokens before it."""
        if not before:
            raise BadSample("it has no text before one of its targets")
        read = before[-self._most_reads :]
        for reader in self._generators:
            if mine := reader.members(members):
                made = ImageSpan(read.start, *reader.rows(sizes[mine[number]]), reads=len(read))
                for name, span in spans_to_make(self._spec, reader.module, made):
                    yield PlacedMedium(self.names.index(name), number, span)


def _same(size: ImageSize, name: str) -> ImageSize:
    """Return the size of a temporal patch; only one module makes rows of it."""
    del name
    return size


def _targets(number: int) -> str:
    return f"{number} target{'s' * (number != 1)}"


def _for(markers: int) -> str:
    return f"{markers} marker{'s' * (markers != 1)} for them"
