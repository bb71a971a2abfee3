"""A step of average samples, for plans and estimates before any data are read.

Decides: what a sample is taken to look like when only the spec is known.
Relies on: `sample_sizes` for the largest image and for what stands together.
Leaves: real samples to the data sets; callers that show nominal rows say that they are nominal.

In an average step every sample has, per encoder, the least number of images that the data allow, of
the same size in all samples, placed after the first token, one encoder after another. When all
samples are text (`text_only: 1`) none has an image. A pack holds as many such records as fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import isqrt
from typing import overload

from mimo_launch.data.sample_sizes import (
    ImageSize,
    largest_image,
    makers,
    only_size,
    room_for_image,
    spans_behind,
    spans_to_make,
)
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import ImageSpan, SampleData, StepData, packed
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import DigitsData, Spec, SyntheticData, WebdatasetData


@dataclass(frozen=True)
class EqualSamples(Sequence[SampleData]):
    """The same sample `number` times, held in memory once."""

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


def nominal_step_data(spec: Spec) -> StepData:
    """Return the nominal step of a checked spec: `batch.global` samples of average size."""
    spans: dict[str, tuple[ImageSpan, ...]] = {}
    position = 1
    if isinstance(spec.data, WebdatasetData) or spec.data.text_only < 1:
        for encoder in spec.sources_of(LANGUAGE):
            num_images = spec.data.min_images if isinstance(spec.data, SyntheticData) else 1
            for _ in range(num_images):
                found = spans_behind(spec, encoder, position, lambda n: nominal_image(spec, n))
                for name, span in found:
                    spans[name] = (*spans.get(name, ()), span)
                position += spans[encoder][-1].rows
    rows = position - 1
    if isinstance(spec.data, DigitsData):
        digits = nominal_digits(spec.data)
        # BOS, image rows or number words, ASK, one digit each, EOS; labels from ASK on.
        num_tokens, num_labels = 1 + (rows or digits) + 1 + digits + 1, digits + 1
    else:
        least = spec.data.min_text if isinstance(spec.data, SyntheticData) else 2
        num_text = least + (spec.batch.seq - rows - least) // 2
        # Three in five of the text tokens that follow text; images separate the first two of them.
        pairs = num_text - 1 - (rows > 0)
        num_tokens, num_labels = rows + num_text, max(1, pairs * 3 // 5)
    for generator in makers(spec):
        size, places, reads = nominal_image(spec, generator), range(1), 1
        if isinstance(spec.data, DigitsData):
            # An image of each digit, made of its word, which stands behind the request to draw.
            places = range(2, 2 + nominal_digits(spec.data))
        elif isinstance(spec.data, WebdatasetData):
            reads = min(spec.data.target_reads, num_tokens)
            places = range(num_tokens - reads, num_tokens - reads + 1)
        width = size.width // len(places)
        for at in places:
            made = ImageSpan(at, size.height, width, reads=reads)
            for name, span in spans_to_make(spec, generator, made):
                spans[name] = (*spans.get(name, ()), span)
    # A sequence is taken to hold as many average records as fit.
    num_records = max(1, spec.batch.seq // num_tokens) if spec.data.packing else 1
    sample = packed([SampleData(0, num_tokens, num_labels, spans)] * num_records)
    return StepData(0, EqualSamples(sample, spec.batch.global_))


def nominal_digits(data: DigitsData) -> int:
    """Return the number of digits of an average strip, halves rounded up."""
    return (data.min_digits + data.max_digits + 1) // 2


def nominal_image(spec: Spec, encoder: str) -> ImageSize:
    """Return the average image that `encoder` gets, in rows.

    That of shards, which have not been read, has half the largest area if sizes differ. One image
    of each encoder leaves room for text.
    """
    largest = largest_image(spec, encoder)
    if isinstance(spec.data, DigitsData):
        per_digit = largest.width // spec.data.max_digits
        return ImageSize(largest.height, per_digit * nominal_digits(spec.data))
    if isinstance(spec.data, WebdatasetData):
        only, room = only_size(spec, encoder), room_for_image(spec, encoder)
        usual = max(1, largest.rows // 2) if only is None else only.rows
        rows = usual if room is None else min(usual, room)
        if rows == largest.rows:
            return largest
        height = min(largest.height, isqrt(rows))
        return ImageSize(height, rows // height)
    clips = kind_of(spec.modules[encoder].model).clips
    given = clips.fixed_length if clips else spec.data.image
    return largest if given else ImageSize(1, max(1, largest.width // 2))
