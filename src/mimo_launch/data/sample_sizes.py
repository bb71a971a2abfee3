"""Sizes of samples before any data is read: the largest image, the longest sample.

Decides: both, from the spec and the image processors that it names.
Relies on: `processors.recipes` for image sizes after processing; `shared_images` for the
rows that modules make of an image together.
Leaves: real samples to the data sets, average samples to `nominal_samples`.
"""

from collections.abc import Iterator
from contextlib import suppress
from math import ceil, isqrt
from typing import TYPE_CHECKING

from mimo_launch.data.shared_images import (
    ImageSize,
    frame_size,
    made_together,
    size_made,
    upstream_video_reader,
)
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.tiles import Shown
from mimo_launch.kinds.vocabulary import DIGIT_SIDE
from mimo_launch.processors.recipes import recipe_of, video_recipe_of
from mimo_launch.spec.base import LANGUAGE, MissingPartError
from mimo_launch.spec.spec import (
    Clips,
    Codes,
    DigitsData,
    Images,
    Spec,
    SyntheticData,
    UserData,
)

if TYPE_CHECKING:
    from mimo_launch.processors.cut_rules import Cut

# Maximum height of a synthetic image, in rows.
MAX_HEIGHT = 3
# Height and width of typical images in pixels, and lengths of typical clips in frames.
_USUAL_IMAGES = ((224, 224), (480, 640), (1000, 600), (36, 72))
_USUAL_FRAMES = (100, 250, 1000, 3000)


def largest_image(spec: Spec, encoder: str) -> ImageSize:
    """Return the largest image, or longest clip, that `encoder` may get, in rows.

    Raises: MissingPartError if `encoder` is not an encoder, which `checks` refuses.
    """
    kind, data = kind_of(spec.modules[encoder].model), spec.data
    if kind.input is None and spec.sources_of(encoder):
        if kind.computes_loss:
            raise MissingPartError(f"modules.{encoder}.model")
        return size_made(spec, encoder, lambda source: largest_image(spec, source))
    if isinstance(data, UserData):
        return _largest_of_shards(spec, encoder)
    return sizes_drawn(spec, encoder)[0][1]


def sizes_drawn(spec: Spec, encoder: str) -> tuple[tuple[ImageSize, ImageSize], ...]:
    """Return the narrowest and widest image of each height that digits or synthetic data draw.

    Sizes are in rows of the encoder. Encoders that see the same image draw the same numbers for it,
    so encoders with equal answers get equal sizes.
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
        longest = clips.frames if clips.has_one_length else min(clips.frames, data.max_frames)
        width = clips.rows_of(longest)
        least = width if clips.has_one_length else ceil(data.min_frames / clips.frames_per_row)
        return ((ImageSize(1, min(least, width)), ImageSize(1, width)),)
    if kind.codes is not None:
        # A frame is a patch; the end takes one more row.
        frames = data.min_patches, data.max_patches
        if data.image is not None:
            frames = (data.image[0] * data.image[1],) * 2
        return ((ImageSize(1, frames[0] + 1), ImageSize(1, frames[1] + 1)),)
    if tiled := sizes_in_tiles(spec, encoder):
        return ((tiled[0], tiled[-1]),)
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


def sizes_in_tiles(spec: Spec, encoder: str) -> list[ImageSize]:
    """Return the sizes of images in tiles that synthetic data draw, by increasing rows.

    The smallest image is one tile, unless each image is cut. For each grid of tiles there is an
    image that fills it, and images with padding beside or above them, unless all fill theirs. Empty
    for encoders without tiles.
    """
    if (rule := kind_of(spec.modules[encoder].model).tokens.tiles) is None:
        return []
    found: list[Shown] = [] if rule.each else [None]
    for grid in rule.grids:
        found += rule.shown_on(*grid)
    sizes = [ImageSize(1, rule.num_rows(each), shown=each) for each in found]
    return sorted(sizes, key=lambda size: size.rows)


def size_of_digit(model: Images | Clips | Codes) -> ImageSize:
    """Return the rows of one digit."""
    return ImageSize(*model.size_of_square(DIGIT_SIDE))


def longest_sample(spec: Spec) -> int:
    """Return the number of tokens of the longest possible sample, end token included."""
    rows = sum(most_rows(spec, encoder) for encoder in spec.sources_of(LANGUAGE))
    if isinstance(spec.data, DigitsData):
        words = spec.data.max_digits
        # BOS, image rows or number words, ASK, one digit each, EOS; a sample to draw is shorter.
        return 1 + max(rows, words) + 1 + words + 1
    if isinstance(spec.data, UserData):
        # Samples longer than a sequence are left out; one image and two text tokens must fit.
        read = ((name, only_size(spec, name)) for name in spec.sources_of(LANGUAGE))
        sizes = ((size.rows, cut_of(spec, name)) for name, size in read if size is not None)
        return 2 + max((rows * (cut.fewest if cut else 1) for rows, cut in sizes), default=0)
    return rows * spec.data.max_images + spec.data.min_text


def most_rows(spec: Spec, name: str) -> int:
    """Return the rows of the largest image that a module gets, or of a video if that has more."""
    rows = largest_image(spec, name).rows
    if not isinstance(spec.data, SyntheticData) or upstream_video_reader(spec, name) is None:
        return rows
    rule = kind_of(spec.modules[name].model).tokens.tiles
    each = rows if rule is None else frame_size(rule, is_last=True).rows
    return max(rows, spec.data.max_temporal_patches * each)


def cut_of(spec: Spec, name: str) -> "Cut | None":
    """Return the rule by which one image of shards becomes several, if there is one.

    `name` is a module that language reads.
    """
    if not isinstance(spec.data, UserData):
        return None
    seeing = (n for n in made_together(spec, name) if kind_of(spec.modules[n].model).images)
    return next((cut for each in seeing if (cut := recipe_of(spec, each).cut)), None)


def only_size(spec: Spec, name: str) -> ImageSize | None:
    """Return the rows that a module makes of any image or clip of shards, None if they differ."""
    kind = kind_of(spec.modules[name].model)
    if kind.reading.rows_of_each is not None:
        return ImageSize(1, kind.reading.rows_of_each)
    if kind.input is None and (sources := spec.sources_of(name)):
        sizes = [size for each in sources if (size := only_size(spec, each)) is not None]
        if len(sizes) < len(sources):
            return None
        return ImageSize(*kind.reading.rows_of([(size.height, size.width) for size in sizes]))
    if clips := kind.clips:
        return ImageSize(1, clips.max_rows) if clips.has_one_length else None
    images = None if kind.tokens.tiles else kind.images
    if images is None or (pixels := recipe_of(spec, name).only_size) is None:
        return None
    return ImageSize(pixels[0] // images.row_side, pixels[1] // images.row_side)


def usual_sizes(spec: Spec) -> Iterator[dict[str, ImageSize]]:
    """Yield the rows that each encoder makes of an image or clip, for several usual sizes."""
    from mimo_launch.processors.resize_rules import ImageTooThin

    for (height, width), frames in zip(_USUAL_IMAGES, _USUAL_FRAMES, strict=True):
        found: dict[str, ImageSize] = {}
        for name, module in spec.encoders.items():
            kind = kind_of(module.model)
            if clips := kind.clips:
                heard = clips.frames if clips.has_one_length else min(frames, clips.frames)
                found[name] = ImageSize(1, max(1, clips.rows_of(heard)))
            elif rule := kind.tokens.tiles:
                shown = rule.filled(1, 1) if rule.whole_last else None
                found[name] = ImageSize(1, rule.num_rows(shown))
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
    if tiled := sizes_in_tiles(spec, name):
        return next((x for x in reversed(tiled) if not in_text or x.rows <= seq), tiled[0])
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
    """Return how often the rows of a module occur in the text, directly or through other modules.

    Rows that a resampler reads do not count: it makes the same number of any image.
    """
    readers = [each for each in spec.modules if name in spec.sources_of(each)]
    through = [each for each in readers if each != LANGUAGE]
    ways = sum(
        _ways_to_text(spec, each)
        for each in through
        if kind_of(spec.modules[each].model).reading.rows_of_each is None
    )
    return ways + len(readers) - len(through)


def room_for_image(spec: Spec, name: str) -> int | None:
    """Return how many rows of its image fit in a text with one per encoder; None if not in text."""
    if not _ways_to_text(spec, name):
        return None
    read = [
        kind_of(spec.modules[each].model).reading.rows_of_each for each in spec.sources_of(LANGUAGE)
    ]
    seeing = [n for n, m in spec.encoders.items() if kind_of(m.model).input is not None]
    left = spec.batch.seq - 2 - sum(rows or 0 for rows in read)
    return max(1, left // sum(_ways_to_text(spec, each) for each in seeing))
