"""A step of average samples, for plans and estimates before any data is read.

Decides: what a sample is assumed to look like when only the spec is known.
Relies on: `sample_sizes` for the largest image, `shared_images` for modules that share images.
Leaves: real samples to the data sets; callers that show nominal rows say that they are nominal.

In an average step, every sample has the mean number of images per encoder, rounded, and at least
one. All have the mean size and follow the first token, one encoder after another. When all samples
are text (`text_only: 1`), none has an image. A pack holds as many such records as fit. Where a
processor cuts images, a sample has one image of a usual size, as its tiles. Where shards may hold
videos, each sample has a video instead of an image; it fills half of the room for rows. The worst
step has the most and the largest images possible, and text up to the end of the sequence.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from math import isqrt
from typing import overload

from mimo_launch.data.sample_sizes import (
    cut_of,
    largest_image,
    most_rows,
    only_size,
    room_for_image,
    sizes_drawn,
    sizes_in_tiles,
)
from mimo_launch.data.shared_images import (
    ImageSize,
    frame_size,
    made_together,
    makers,
    size_made,
    spans_to_make,
    upstream_spans,
    upstream_video_reader,
)
from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import ImageSpan, SampleData, StepData, packed
from mimo_launch.processors.recipes import video_reader_of, video_recipe_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import DigitsData, Spec, SyntheticData, UserData

# Height and width in pixels of an image that is cut into tiles.
_USUAL_IMAGE = (480, 640)
# The fewest temporal patches of a nominal video: 8 seconds of two frames each.
NOMINAL_GROUPS = 8


@frozen(slots=False)
class EqualSamples(Sequence[SampleData]):
    """The same sample `number` times, stored once."""

    sample: SampleData
    number: int

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[SampleData]:
        return repeat(self.sample, self.number)

    @overload
    def __getitem__(self, index: int) -> SampleData: ...
    @overload
    def __getitem__(self, index: slice) -> "EqualSamples": ...
    def __getitem__(self, index: int | slice) -> "SampleData | EqualSamples":
        found = range(self.number)[index]
        return EqualSamples(self.sample, len(found)) if isinstance(found, range) else self.sample


def nominal_step_data(spec: Spec, *, worst: bool = False) -> StepData:
    """Return the nominal step of a checked spec: `batch.global` samples of average size.

    With `worst`, samples have the largest size.
    """

    def size_of(spec: Spec, encoder: str) -> ImageSize:
        return nominal_image(spec, encoder, worst=worst)

    spans: dict[str, tuple[ImageSpan, ...]] = {}
    position = 1
    if isinstance(spec.data, UserData) or spec.data.text_only < 1:
        for encoder in spec.sources_of(LANGUAGE):
            for later in _shown(spec, encoder, worst):
                found = upstream_spans(spec, encoder, position, lambda n: size_of(spec, n), later)
                for name, span in found:
                    spans[name] = (*spans.get(name, ()), span)
                position += spans[encoder][-1].rows
    rows = position - 1
    if isinstance(spec.data, DigitsData):
        digits = spec.data.max_digits if worst else nominal_digits(spec.data)
        # BOS, image rows or number words, ASK, one digit each, EOS; labels from ASK on.
        num_tokens, num_labels = 1 + (rows or digits) + 1 + digits + 1, digits + 1
    else:
        left = spec.batch.seq - rows
        least, most = (
            (spec.data.min_text, spec.data.most_text(left))
            if isinstance(spec.data, SyntheticData)
            else (2, left)
        )
        room = most - least
        num_text = least + (room if worst else room // 2)
        # Three in five text tokens that follow text are labels; images separate the first two.
        pairs = num_text - 1 - (rows > 0)
        num_tokens, num_labels = rows + num_text, max(1, pairs * 3 // 5)
    for generator in makers(spec):
        size, places, reads = size_of(spec, generator), range(1), 1
        if isinstance(spec.data, DigitsData):
            # An image of each digit, made from its word, which follows the request to draw.
            places = range(2, 2 + (spec.data.max_digits if worst else nominal_digits(spec.data)))
        elif isinstance(spec.data, UserData):
            reads = min(spec.data.target_reads, num_tokens)
            places = range(num_tokens - reads, num_tokens - reads + 1)
        width = size.width // len(places)
        for at in places:
            made = ImageSpan(at, size.height, width, reads=reads)
            for name, span in spans_to_make(spec, generator, made):
                spans[name] = (*spans.get(name, ()), span)
    # Assume that a sequence holds as many average records as fit.
    num_records = max(1, spec.batch.seq // num_tokens) if spec.data.packing else 1
    depths = range(1, kind_of(spec.language.model).depths + 1)
    ahead = tuple(max(0, min(num_labels, num_tokens - 1 - depth)) for depth in depths)
    record = SampleData(0, num_tokens, num_labels, spans, labels_ahead=ahead)
    sample = packed([record] * num_records)
    return StepData(0, EqualSamples(sample, spec.batch.global_))


def _shown(spec: Spec, encoder: str, worst: bool) -> list[int | None]:
    """Return how much later each image of a sample is than the first, for one encoder.

    An image that a processor cuts counts as its tiles, as far as there is room. A video counts as
    its temporal patches, and fills half of the room or, with `worst`, all of it.
    """
    reader, recipe = video_reader_of(spec), None
    if reader is not None and reader in made_together(spec, encoder):
        recipe = video_recipe_of(spec, reader)
    cut = cut_of(spec, encoder)
    if recipe is None and cut is None:
        return [None] * (_num_images(spec, worst) * _num_patches(spec, encoder, worst))
    size = size_made(spec, encoder, lambda name: nominal_image(spec, name, worst=worst))
    if recipe is None or reader is None:
        room = _room(spec, encoder, worst=True) // max(1, size.rows)
        usual = 1
        if cut is not None:
            usual = cut.most if worst else len(cut.pieces(*_USUAL_IMAGE))
        return [None] * max(1, min(room, usual))
    number = max(1, _room(spec, reader, worst) // max(1, size.rows))
    if recipe.most_groups is not None:
        number = min(number, recipe.most_groups)
    return [None, *range(1, number)] if recipe.videos.on_axis else [None] * number


def _room(spec: Spec, name: str, worst: bool) -> int:
    """Return the number of rows that a nominal video has in the text."""
    room = room_for_image(spec, name) or spec.batch.seq - 2
    return max(1, room if worst else room // 2)


def _num_images(spec: Spec, worst: bool) -> int:
    """Return the number of images of a sample for one encoder: the mean, or the most."""
    if not isinstance(spec.data, SyntheticData):
        return 1
    data = spec.data
    if worst:
        return data.max_images
    # A coin toss decides whether each image beyond the minimum follows.
    mean = data.min_images + 1 - 0.5 ** (data.max_images - data.min_images)
    return max(1, round((1 - data.text_only) * mean))


def _num_patches(spec: Spec, encoder: str, worst: bool) -> int:
    """Return the number of temporal patches of a synthetic image or video: the mean or the most."""
    if not isinstance(spec.data, SyntheticData) or upstream_video_reader(spec, encoder) is None:
        return 1
    size = size_made(spec, encoder, lambda name: nominal_image(spec, name, worst=worst))
    # The largest image in tiles has more rows than a frame, so fewer of them fit.
    room = max(1, most_rows(spec, encoder) // max(1, size.rows))
    most = min(spec.data.max_temporal_patches, room)
    return most if worst else (1 + most) // 2


def nominal_digits(data: DigitsData) -> int:
    """Return the number of digits of an average strip, halves rounded up."""
    return (data.min_digits + data.max_digits + 1) // 2


def nominal_image(spec: Spec, encoder: str, *, worst: bool = False) -> ImageSize:
    """Return the average image that `encoder` gets, in rows; with `worst`, the largest.

    Shards have not been read yet: if their sizes differ, the average has half the largest area.
    One image of each encoder leaves room for text.
    """
    rule = kind_of(spec.modules[encoder].model).tokens.tiles
    if rule is not None and video_recipe_of(spec, encoder) is not None:
        return frame_size(rule, is_last=False)
    if tiled := sizes_in_tiles(spec, encoder):
        room = room_for_image(spec, encoder)
        fitting = [size for size in tiled if room is None or size.rows <= room] or tiled[:1]
        return fitting[-1 if worst else len(fitting) // 2]
    return _nominal_image(spec, encoder, worst=worst)


def _nominal_image(spec: Spec, encoder: str, *, worst: bool) -> ImageSize:
    largest = largest_image(spec, encoder)
    if worst and not isinstance(spec.data, UserData):
        return largest
    if isinstance(spec.data, DigitsData):
        per_digit = largest.width // spec.data.max_digits
        return ImageSize(largest.height, per_digit * nominal_digits(spec.data))
    if isinstance(spec.data, UserData):
        only, room = only_size(spec, encoder), room_for_image(spec, encoder)
        part = 1 if worst else 2
        usual = max(1, largest.rows // part) if only is None else only.rows
        rows = usual if room is None else min(usual, room)
        images, videos = kind_of(spec.modules[encoder].model).images, None
        if images is not None and (videos := video_recipe_of(spec, encoder)) is not None:
            from mimo_launch.processors.frame_sizes import ExactFrames

            rows = min(rows, max(1, videos.frame_size.most_pixels // images.row_side**2))
            if not worst and not isinstance(videos.frame_size, ExactFrames):
                rows = max(1, min(rows, _room(spec, encoder, worst) // NOMINAL_GROUPS))
        if rows == largest.rows:
            return largest
        height = min(largest.height, isqrt(rows))
        return ImageSize(height, rows // height)
    clips = kind_of(spec.modules[encoder].model).clips
    given = clips.has_one_length if clips else spec.data.image
    if given:
        return largest
    drawn = sizes_drawn(spec, encoder)
    means = [(least.rows + most.rows) / 2 for least, most in drawn]
    # Rounded down: the mean of 1 and 2 rows is 1.
    return ImageSize(1, max(1, int(sum(means) / len(means))))
