"""Sizes of samples before any data are read: the largest image, the longest sample.

Decides: both, as a data set can hold them, from the spec and the image processors that it names;
which modules see the same image.
Relies on: `hugging_face.image_processor` for the sizes that images get.
Leaves: real samples to the data sets, average ones to `nominal_samples`.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import ceil, isqrt

from mimo_launch.hugging_face.image_processor import ImageTooThin, recipe_of
from mimo_launch.hugging_face.video_processor import video_recipe_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import DIGIT_SIDE
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import (
    Clips,
    Codes,
    DigitsData,
    Images,
    Spec,
    SyntheticData,
    WebdatasetData,
)

# Of images that synthetic data draw, in rows.
MAX_HEIGHT = 3
# Height and width of some images in pixels, and lengths of some clips in frames.
_USUAL_IMAGES = ((224, 224), (480, 640), (1000, 600), (36, 72))
_USUAL_FRAMES = (100, 250, 1000, 3000)


@dataclass(frozen=True, slots=True)
class ImageSize:
    """An image in rows: patches or, with pixel shuffle, squares of patches. A clip is 1 high."""

    height: int
    width: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.height * self.width


def size_made(spec: Spec, name: str, size_of: Callable[[str], ImageSize]) -> ImageSize:
    """Return the rows that a module makes of an image, by those of the encoders that see it."""

    @cache
    def made(name: str) -> ImageSize:
        kind, sources = kind_of(spec.modules[name].model), spec.sources_of(name)
        if not (kind.reads_rows and sources) or kind.computes_loss:
            return size_of(name)
        sizes = [made(source) for source in sources]
        return ImageSize(*kind.rows_of([(size.height, size.width) for size in sizes]))

    return made(name)


def spans_behind(
    spec: Spec,
    name: str,
    position: int,
    size_of: Callable[[str], ImageSize],
    later: int | None = None,
) -> Iterator[tuple[str, ImageSpan]]:
    """Yield the span of an image for a module that language reads, and for those behind it.

    `later` is that of the span, for one of a video.

    Modules that language also reads itself have spans of their own, and those that an earlier
    module of language has behind it are yielded with that.
    """
    for each in made_together(spec, name):
        size = size_made(spec, each, size_of)
        yield each, ImageSpan(position, size.height, size.width, later=later)


def spans_to_make(spec: Spec, name: str, made: ImageSpan) -> Iterator[tuple[str, ImageSpan]]:
    """Yield what a generator makes of some tokens, and for it each connector in front of it."""
    yield name, made
    for source in spec.sources_of(name):
        if source != LANGUAGE:
            size = size_made(spec, source, lambda _: ImageSize(1, made.num_positions))
            yield from spans_to_make(
                spec, source, ImageSpan(made.position, size.height, size.width, reads=made.reads)
            )


def makers(spec: Spec) -> list[str]:
    """Return the modules behind language that make images or clips, without connectors."""
    return [n for n, m in spec.generators.items() if kind_of(m.model).computes_loss]


def made_together(spec: Spec, name: str) -> list[str]:
    """Return a module that language reads and those behind it that no other one has behind it."""
    own = spec.sources_of(LANGUAGE)
    elsewhere = {*own}.union(*(_behind(spec, earlier) for earlier in own[: own.index(name)]))
    return [name, *sorted(_behind(spec, name) - elsewhere)]


def _behind(spec: Spec, name: str) -> set[str]:
    """Return every module that a module reads, or that one of these reads."""
    found: set[str] = set()
    left = [*spec.sources_of(name)]
    while left:
        if (each := left.pop()) not in found:
            found.add(each)
            left += spec.sources_of(each)
    return found


def shown_together(spec: Spec) -> dict[str, str]:
    """Return, for each module that language reads, the first one that sees the same images.

    Two that see none in common do so, too, if a third one sees images of both.
    """
    seen = {name: {name} | _behind(spec, name) for name in spec.sources_of(LANGUAGE)}
    found: dict[str, str] = {}
    for first in seen:
        together: set[str] = set()
        more = [] if first in found else [first]
        while more:
            found |= dict.fromkeys(more, first)
            together.update(*(seen[name] for name in more))
            more = [name for name in seen if name not in found and seen[name] & together]
    return found


def largest_image(spec: Spec, encoder: str) -> ImageSize:
    """Return the largest image, or longest clip, that `encoder` may get, in rows."""
    model, data = spec.modules[encoder].model, spec.data
    if kind_of(model).input is None and spec.sources_of(encoder):
        return size_made(spec, encoder, lambda source: largest_image(spec, source))
    if isinstance(data, WebdatasetData):
        return _largest_of_shards(spec, encoder)
    return sizes_drawn(spec, encoder)[0][1]


def sizes_drawn(spec: Spec, encoder: str) -> tuple[tuple[ImageSize, ImageSize], ...]:
    """Return, per height that digits or synthetic data draw, the narrowest and widest image.

    In rows of an encoder that reads them. Encoders that see the same image draw the same numbers
    for it, so those with equal answers get equal sizes.
    """
    kind, data = kind_of(spec.modules[encoder].model), spec.data
    if isinstance(data, DigitsData):
        digit = ImageSize(1, 1) if kind.input is None else size_of_digit(kind.input)
        fewest, most = (
            ImageSize(digit.height, digit.width * n) for n in (data.min_digits, data.max_digits)
        )
        return ((fewest, most),)
    if not isinstance(data, SyntheticData):
        raise TypeError(f"the sizes of images of {data.kind} are not drawn")
    if clips := kind.clips:
        longest = clips.frames if clips.fixed_length else min(clips.frames, data.max_frames)
        width = longest // clips.frames_per_row
        least = width if clips.fixed_length else ceil(data.min_frames / clips.frames_per_row)
        return ((ImageSize(1, min(least, width)), ImageSize(1, width)),)
    if kind.codes is not None:
        # A frame is a patch; one more row is for the end.
        frames = data.min_patches, data.max_patches
        if data.image is not None:
            frames = (data.image[0] * data.image[1],) * 2
        return ((ImageSize(1, frames[0] + 1), ImageSize(1, frames[1] + 1)),)
    shuffle = images.shuffle if (images := kind.images) else 1
    if data.image is not None:
        only = ImageSize(data.image[0] // shuffle, data.image[1] // shuffle)
        return ((only, only),)
    fewest_rows, most_rows = (n / shuffle**2 for n in (data.min_patches, data.max_patches))
    found = []
    for height in range(1, max(1, min(MAX_HEIGHT, int(most_rows))) + 1):
        widest = int(most_rows) // height
        narrowest = min(ceil(fewest_rows / height), widest)
        found.append((ImageSize(height, narrowest), ImageSize(height, widest)))
    return tuple(found)


def size_of_digit(model: Images | Clips | Codes) -> ImageSize:
    """Return the rows of one digit; its pixels, row after row, are the codes of its frames."""
    if isinstance(model, Codes):
        frames = max(1, DIGIT_SIDE**2 // model.codebooks)
        return ImageSize(*model.size_in_rows((model.codebooks, frames)))
    side = max(1, DIGIT_SIDE // model.row_side) if isinstance(model, Images) else 1
    return ImageSize(side, side)


def longest_sample(spec: Spec) -> int:
    """Return the tokens of the longest sample the data set can hold, end token included."""
    rows = sum(largest_image(spec, encoder).rows for encoder in spec.sources_of(LANGUAGE))
    if isinstance(spec.data, DigitsData):
        words = spec.data.max_digits
        # BOS, image rows or number words, ASK, one digit each, EOS; one to draw is shorter.
        return 1 + max(rows, words) + 1 + words + 1
    if isinstance(spec.data, WebdatasetData):
        # Longer samples than a sequence are left out; one image and two text tokens must fit.
        read = (only_size(spec, name) for name in spec.sources_of(LANGUAGE))
        return 2 + max((size.rows for size in read if size is not None), default=0)
    return rows * spec.data.max_images + spec.data.min_text


def only_size(spec: Spec, name: str) -> ImageSize | None:
    """Return the rows that a module makes of every image or clip of shards, None if they differ."""
    kind = kind_of(spec.modules[name].model)
    if kind.rows_of_each is not None:
        return ImageSize(1, kind.rows_of_each)
    if kind.input is None and (sources := spec.sources_of(name)):
        sizes = [size for each in sources if (size := only_size(spec, each)) is not None]
        if len(sizes) < len(sources):
            return None
        return ImageSize(*kind.rows_of([(size.height, size.width) for size in sizes]))
    if clips := kind.clips:
        return ImageSize(1, clips.max_rows) if clips.fixed_length else None
    if (images := kind.images) is None or (pixels := recipe_of(spec, name).only_size) is None:
        return None
    return ImageSize(pixels[0] // images.row_side, pixels[1] // images.row_side)


def usual_sizes(spec: Spec) -> Iterator[dict[str, ImageSize]]:
    """Yield the rows that each encoder makes of the same image or clip, for some usual ones."""
    for (height, width), frames in zip(_USUAL_IMAGES, _USUAL_FRAMES, strict=True):
        found: dict[str, ImageSize] = {}
        for name, module in spec.encoders.items():
            kind = kind_of(module.model)
            if clips := kind.clips:
                heard = clips.frames if clips.fixed_length else min(frames, clips.frames)
                found[name] = ImageSize(1, max(1, heard // clips.frames_per_row))
            elif images := kind.images:
                with suppress(ImageTooThin):
                    tall, wide = recipe_of(spec, name).size(height, width)
                    found[name] = ImageSize(tall // images.row_side, wide // images.row_side)
        yield found


def _largest_of_shards(spec: Spec, name: str) -> ImageSize:
    """Return the largest image of shards that have not been read, as the spec limits it.

    A sample with more rows in its text than `batch.seq` is left out.
    """
    kind, seq = kind_of(spec.modules[name].model), spec.batch.seq
    in_text = _ways_to_text(spec, name) > 0
    if clips := kind.clips:
        return ImageSize(1, min(clips.max_rows, seq) if in_text else clips.max_rows)
    if kind.codes is not None:
        return ImageSize(1, seq)
    if (images := kind.images) is None:
        return ImageSize(1, 1)
    if (size := only_size(spec, name)) is not None:
        return size
    rows, pixels = seq, recipe_of(spec, name).most_pixels
    if pixels is not None:
        if (videos := video_recipe_of(spec, name)) is not None:
            pixels = max(pixels, videos.frame_size.most_pixels)
        most = max(1, pixels // images.row_side**2)
        rows = min(seq, most) if in_text else most
    height = isqrt(rows)
    return ImageSize(height, rows // height)


def _ways_to_text(spec: Spec, name: str) -> int:
    """Return how often the rows of a module stand in the text, as they are or through others.

    Not those of an image that a resampler reads: it makes equally many of any image.
    """
    readers = [each for each in spec.modules if name in spec.sources_of(each)]
    through = [each for each in readers if each != LANGUAGE]
    ways = sum(
        _ways_to_text(spec, each)
        for each in through
        if kind_of(spec.modules[each].model).rows_of_each is None
    )
    return ways + len(readers) - len(through)


def room_for_image(spec: Spec, name: str) -> int | None:
    """Return how many rows of its image fit into a text with one image of each encoder, if any."""
    if not _ways_to_text(spec, name):
        return None
    read = [kind_of(spec.modules[each].model).rows_of_each for each in spec.sources_of(LANGUAGE)]
    seeing = [n for n, m in spec.encoders.items() if kind_of(m.model).input is not None]
    left = spec.batch.seq - 2 - sum(rows or 0 for rows in read)
    return max(1, left // sum(_ways_to_text(spec, each) for each in seeing))
