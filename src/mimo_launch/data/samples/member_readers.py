"""Members of samples as inputs of modules: the number of rows of each member, and its array.

Decides: which targets of a sample a generator gets.
Relies on: `processors.image_recipe` and `torch_media` for sizes; `decode_media` for contents.
Leaves: which suffixes are media to `sources.media_suffixes`, the places of rows in a sample to
`media_rows`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import BadSample, Media
from mimo_launch.data.samples.decode_media import (
    Marker,
    Medium,
    decode_clip,
    decode_codes,
    decode_image,
    medium_of,
    process,
)
from mimo_launch.data.samples.decode_video import decode_sound, video_groups, video_size
from mimo_launch.data.shared_images import ImageSize
from mimo_launch.data.sources.media_suffixes import CODES_SUFFIX, target_of
from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.processors.frame_sampling import VideoSize, VideoTooShort
from mimo_launch.processors.image_recipe import ImageRecipe
from mimo_launch.processors.resize_rules import ImageTooThin
from mimo_launch.processors.sounds import HOP, RATE, WINDOW
from mimo_launch.processors.video_recipe import TakenVideo, VideoRecipe
from mimo_launch.spec.spec import Clips, Codes, Images

# Height and width of an image in pixels, length and rate of a clip in samples and Hz, or codebooks
# and frames of codes.
MediumSize = tuple[int, int]
Array = npt.NDArray[np.float32]


@frozen
class MemberReader(ABC):
    """Reads the input of one module from a sample: images or clips, or targets to make."""

    medium: ClassVar[Medium | None]
    module: str
    makes: bool

    def members(self, found: Mapping[Marker, Sequence[str]]) -> Sequence[str]:
        """Return the suffixes in a sample that the module reads, in order.

        A generator gets the targets under its name or, if there are none, targets without a name.
        """
        if not self.makes:
            return () if self.medium is None else found.get(self.medium, ())
        targets = [each for each in found.get("target", ()) if self.takes(each)]
        own = [each for each in targets if target_of(each)[0] == self.module]
        return own or [each for each in targets if not target_of(each)[0]]

    def takes(self, suffix: str) -> bool:
        """Return whether a member has the format that the module reads."""
        return medium_of(suffix) == self.medium

    @property
    @abstractmethod
    def sizing(self) -> list[object]:
        """The settings that the number of rows depends on; if they change, an index is rebuilt."""

    @abstractmethod
    def rows(self, size: MediumSize) -> tuple[int, int]:
        """Return the height and width in rows of a member. Raises: BadSample."""

    def sized(self, size: MediumSize, *, alone: bool) -> ImageSize:
        """Return the rows of a member, which may be `alone` in its sample. Raises: BadSample."""
        del alone
        return ImageSize(*self.rows(size))

    def arrays(self, suffix: str, data: bytes, spans: Sequence[ImageSpan]) -> list[Media]:
        """Return the arrays of all spans of one member; a video has several."""
        return [self.array(suffix, data, span) for span in spans]

    @abstractmethod
    def array(self, suffix: str, data: bytes, span: ImageSpan) -> Media:
        """Return the module's input or target from a member that becomes `span`."""

    def pixels(self, array: Media) -> npt.NDArray[np.uint8] | None:
        """Return an array as displayable pixels, [channels, height, width]; None for a clip."""
        del array
        return None


@frozen
class ShownVideo:
    """The images of a video that an encoder sees, with the rows of each.

    For each image, `later` is how much later than the first language counts it (None for a separate
    image), and `told` is the number from which its text is written. `sound` are the rows of its
    sound, None if it is not heard.
    """

    rows: tuple[ImageSize, ...]
    later: tuple[int | None, ...]
    told: tuple[int, ...]
    sound: ImageSize | None = None


@frozen
class ImageReader(MemberReader):
    """The images of one encoder or generator: the rows of each, and their pixels.

    With `videos`, an encoder also reads videos; `rate` is the frame rate of a zip.
    """

    medium: ClassVar[Medium] = "image"
    images: Images
    recipe: ImageRecipe
    videos: VideoRecipe | None = None
    rate: float = 1.0

    def members(self, found: Mapping[Marker, Sequence[str]]) -> Sequence[str]:
        """Return the suffixes that the module reads, images before videos."""
        # `super()` without arguments fails in a dataclass with slots.
        images = MemberReader.members(self, found)
        return images if self.videos is None else (*images, *found.get("video", ()))

    @property
    def sizing(self) -> list[object]:
        """The settings that the number of rows depends on."""
        side, recipe, most = self.images.row_side, self.recipe, self.images.most_places
        read = [*self.sizing_of_videos, *([] if most is None else [most])]
        return [
            self.module,
            side,
            repr(recipe.resize),
            recipe.pad_square,
            recipe.crop,
            recipe.canvas,
            *read,
        ]

    @property
    def sizing_of_videos(self) -> list[object]:
        """The settings that the rows of videos depend on, if videos are read."""
        return [] if self.videos is None else [repr(self.videos), self.rate]

    def shown(self, size: VideoSize) -> ShownVideo:
        """Return the part of a video that is shown. Raises: BadSample."""
        taken = self._taken(size)
        return ShownVideo(self._group_sizes(taken), taken.later, taken.told)

    def _group_sizes(self, taken: TakenVideo) -> tuple[ImageSize, ...]:
        """Return the rows of each image of a video."""
        side = self.images.row_side
        return (ImageSize(taken.height // side, taken.width // side),) * len(taken.later)

    def _taken(self, size: VideoSize) -> TakenVideo:
        try:
            taken = self._recipe.taken(size)
        except (ImageTooThin, VideoTooShort) as error:
            raise BadSample(f"of its video, {error}") from error
        if min(taken.height, taken.width) < self.images.row_side:
            raise BadSample(
                f"a video of {size.width} x {size.height} pixels is too small for a row"
            )
        self._limit(f"a video of {size.width} x {size.height}", taken.height, taken.width)
        return taken

    @property
    def _recipe(self) -> VideoRecipe:
        if self.videos is None:
            raise TypeError(f"{self.module} reads no videos")
        return self.videos

    def arrays(self, suffix: str, data: bytes, spans: Sequence[ImageSpan]) -> list[Media]:
        """Return the pixels of an image, or of the temporal patches of a video that are used."""
        if medium_of(suffix) != "video":
            return MemberReader.arrays(self, suffix, data, spans)
        taken = self._taken(video_size(suffix, data, self.rate))
        groups = video_groups(suffix, data, taken, self._recipe)
        return [self._group(each, spans[0]) for each in islice(groups, len(spans))]

    def _group(self, pixels: Array, span: ImageSpan) -> Array:
        """Return the input of a temporal patch, given as [channels, frames, height, width]."""
        height, width = self.images.input_shape(span.height, span.width)[-2:]
        return pixels[..., :height, :width]

    def rows(self, size: MediumSize) -> tuple[int, int]:
        """Return the height and width in rows of an image. Raises: BadSample."""
        try:
            height, width = self.recipe.size(*size)
        except ImageTooThin as error:
            raise BadSample(str(error)) from error
        side = self.images.row_side
        if min(height, width) < side:
            raise BadSample(f"an image of {size[1]} x {size[0]} pixels is too small for one row")
        self._limit(f"an image of {size[1]} x {size[0]}", height, width)
        return height // side, width // side

    def _limit(self, what: str, height: int, width: int) -> None:
        """Raise BadSample for an image that becomes longer than the places of its encoder."""
        # Pixels that make no whole row are cut off.
        rows = max(height, width) // self.images.row_side
        most, patches = self.images.most_places, rows * self.images.shuffle
        if most is not None and patches > most:
            raise BadSample(f"{what} pixels becomes {patches} patches long, but `places` is {most}")

    def array(self, suffix: str, data: bytes, span: ImageSpan) -> Array:
        """Return the pixels of an image that becomes `span`, [channels, (frames,) h, w]."""
        image = decode_image(suffix, data, channels=self.images.channels)
        return self.as_input(process(image, self.recipe), span)

    def as_input(self, pixels: Array, span: ImageSpan) -> Array:
        """Return the input of the encoder from pixels [channels, height, width]."""
        height, width = self.images.input_shape(span.height, span.width)[-2:]
        # Drop pixels at the right and bottom that make no whole row, as convolutions do.
        pixels = np.ascontiguousarray(pixels[:, :height, :width])
        if not self.images.reads_videos:
            return pixels
        # An image is a video of equal frames.
        return np.repeat(pixels[:, None], self.images.frames, axis=1)

    def pixels(self, array: Media) -> npt.NDArray[np.uint8]:
        """Return an array as displayable pixels, [channels, height, width]: black to white."""
        mean, std = (np.array(each)[:, None, None] for each in (self.recipe.mean, self.recipe.std))
        values = (array * std + mean) / self.recipe.scale
        pixels: npt.NDArray[np.uint8] = np.round(values.clip(0, 255)).astype(np.uint8)
        return pixels


@frozen
class ClipReader(MemberReader):
    """The clips of one encoder: the rows that it makes of each, and their spectrograms.

    With `cuts_long`, of a clip that is longer than the encoder's window it hears the beginning.
    With `of_videos` it also hears the sound of videos.
    """

    medium: ClassVar[Medium] = "audio"
    clips: Clips
    cuts_long: bool = False
    of_videos: bool = False

    def members(self, found: Mapping[Marker, Sequence[str]]) -> Sequence[str]:
        """Return the suffixes that the module reads, clips before videos."""
        # `super()` without arguments fails in a dataclass with slots.
        clips = MemberReader.members(self, found)
        return (*clips, *found.get("video", ())) if self.of_videos else clips

    @property
    def sizing(self) -> list[object]:
        """The settings that the number of rows depends on."""
        clips = self.clips
        drops = ["drops silence"] if clips.drops_silence else []
        chunk = [] if clips.chunk_frames is None else [clips.chunk_frames]
        cuts = ["cuts long clips"] if self.cuts_long else []
        cuts += ["hears videos"] if self.of_videos else []
        features = [] if clips.features == "whisper" else [clips.features]
        sizes = [clips.frames, clips.fixed_length, clips.frames_per_row]
        return [self.module, *sizes, *drops, *chunk, *cuts, *features]

    def rows(self, size: MediumSize) -> tuple[int, int]:
        """Return 1 and the number of rows of a clip. Raises: BadSample."""
        found = self.clips.rows_of(self._num_frames(size))
        if not found:
            length = f"a clip of {size[0] / size[1]:g} s"
            raise BadSample(f"for `{self.module}`, {length} is too short for a row")
        return 1, found

    def sized(self, size: MediumSize, *, alone: bool) -> ImageSize:
        """Return the rows of a clip, and the tokens at its end that do not fill one."""
        del alone
        loose = self.clips.tokens_of(self._num_frames(size)) % self.clips.stack
        return ImageSize(*self.rows(size), loose)

    def _num_frames(self, size: MediumSize) -> int:
        # Imported here because it imports torch, which an index of images does not need.
        from mimo_launch.data.torch_media import ClipTooLong, num_frames

        if min(size) < 1:
            raise BadSample("a clip without samples")
        try:
            return num_frames(self.clips, *size, cuts=self.cuts_long)
        except ClipTooLong as error:
            raise BadSample(
                f"for `{self.module}`, {error}, or write `long_clips: cut` in `data`"
            ) from error

    def array(self, suffix: str, data: bytes, span: ImageSpan) -> Array:
        """Return the log-mel spectrogram of a clip that becomes `span`, [mels, frames]."""
        from mimo_launch.data.torch_media import log_mel, nemo_log_mel, phi4_log_mel

        mels, frames = self.clips.input_shape(span.height, span.width, span.loose)
        # One second more than needed: resampling looks a little ahead.
        decode = decode_sound if medium_of(suffix) == "video" else decode_clip
        clip = decode(suffix, data, seconds=1 + frames * HOP / RATE)
        if self.clips.chunk_frames is not None:
            # The windows of the last frames reach into silence.
            frames = min(frames, self._num_frames((len(clip[0]), clip[1])))
            of_conformers = {"nemo": nemo_log_mel, "phi4": phi4_log_mel}
            if (made := of_conformers.get(self.clips.features)) is not None:
                return made(*clip, mels, frames=frames)
            heard = min(self.clips.frames, frames + WINDOW // HOP)
        else:
            # Convolutions see dropped silence, and the range of loudness includes it.
            heard = self.clips.frames if self.clips.drops_silence else frames
        return log_mel(*clip, mels, frames=heard)[:, :frames]


@frozen
class CodesReader(MemberReader):
    """The clips of codec tokens of one talker."""

    medium: ClassVar[Medium | None] = None
    codes: Codes

    def takes(self, suffix: str) -> bool:
        """Return whether a member is a numpy file."""
        return suffix.endswith(f".{CODES_SUFFIX}")

    @property
    def sizing(self) -> list[object]:
        """The settings that the number of rows depends on."""
        return [self.module, self.codes.codebooks]

    def rows(self, size: MediumSize) -> tuple[int, int]:
        """Return 1 and the number of rows of a clip. Raises: BadSample."""
        if size[0] != self.codes.codebooks:
            raise BadSample(
                f"its codes are of {size[0]} codebooks, those of `{self.module}` of "
                f"{self.codes.codebooks}"
            )
        return self.codes.size_in_rows(size)

    def array(self, suffix: str, data: bytes, span: ImageSpan) -> Media:
        """Return the codes of a clip, int64 [codebooks, frames]. Raises: BadSample."""
        codes, found = self.codes, decode_codes(suffix, data)
        taken = (found == codes.start_code) | (found == codes.end_code)
        taken[codes.ending_books :] = False
        for book, size in enumerate(codes.book_sizes):
            wrong = found[book][(found[book] < 0) | (found[book] >= size) | taken[book]]
            if len(wrong):
                ends = f" without {codes.start_code} and {codes.end_code}"
                raise BadSample(
                    f"its .{suffix} has the code {wrong[0]}; `{self.module}` says 0 to "
                    f"{size - 1}{ends if book < codes.ending_books else ''}"
                )
        return found
