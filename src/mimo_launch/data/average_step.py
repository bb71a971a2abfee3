"""A step of average samples, for saying what will happen before any data are read.

Decides: what a sample is taken to look like when only the spec is known.
Relies on: the spec's types and the image sizes of `sample_sizes`.
Leaves: real steps to the data sets; whoever shows nominal rows says that they are nominal.

Every sample has as many images per encoder as the data have at least, of the same size in all
samples, placed after the first token, one encoder after another. When all samples are text
(`text_only: 1`) none has an image. A pack holds as many such records as fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import isqrt
from typing import overload

from mimo_launch.data.sample_sizes import ImageSize, largest_image, rows_of_all
from mimo_launch.layout.step_data import ImageSpan, SampleData, StepData, packed
from mimo_launch.spec.model import DigitsData, Spec, SyntheticData, WebdatasetData, clip_input


@dataclass(frozen=True)
class EqualSamples(Sequence[SampleData]):
    """As many times the same sample as asked for, without a place in memory for each."""

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
        for encoder in spec.encoders:
            size = nominal_image(spec, encoder)
            num_images = spec.data.min_images if isinstance(spec.data, SyntheticData) else 1
            places = range(position, position + num_images * size.rows, size.rows)
            spans[encoder] = tuple(ImageSpan(p, size.height, size.width) for p in places)
            position = places.stop
    num_tokens, num_labels = _lengths(spec, position - 1)
    # A sequence is taken to hold as many average records as fit.
    num_records = max(1, spec.batch.seq // num_tokens) if spec.data.packing else 1
    sample = packed([SampleData(0, num_tokens, num_labels, spans)] * num_records)
    return StepData(0, EqualSamples(sample, spec.batch.global_))


def nominal_digits(data: DigitsData) -> int:
    """Return the number of digits of an average strip, halves rounded up."""
    return (data.min_digits + data.max_digits + 1) // 2


def nominal_image(spec: Spec, encoder: str) -> ImageSize:
    """Return the average image that `encoder` meets, in rows."""
    largest = largest_image(spec, encoder)
    if isinstance(spec.data, DigitsData):
        per_digit = largest.width // spec.data.max_digits
        return ImageSize(largest.height, per_digit * nominal_digits(spec.data))
    if isinstance(spec.data, WebdatasetData):
        return _nominal_of_shards(spec, encoder, largest)
    clips = clip_input(spec.encoders[encoder].model)
    given = clips.fixed_length if clips else spec.data.image
    return largest if given else ImageSize(1, max(1, largest.width // 2))


def _nominal_of_shards(spec: Spec, encoder: str, largest: ImageSize) -> ImageSize:
    """Return the image of shards nobody has looked at: half the largest area, if sizes differ.

    One of each encoder leaves room for text.
    """
    usual = rows_of_all(spec, encoder) or max(1, largest.rows // 2)
    rows = min(usual, max(1, (spec.batch.seq - 2) // len(spec.encoders)))
    if rows == largest.rows:
        return largest
    height = min(largest.height, isqrt(rows))
    return ImageSize(height, rows // height)


def _lengths(spec: Spec, rows: int) -> tuple[int, int]:
    """Return the tokens and the labels of a sample with that many rows."""
    if isinstance(spec.data, DigitsData):
        digits = nominal_digits(spec.data)
        # BOS, image rows or number words, ASK, one digit each, EOS; labels from ASK on.
        return 1 + (rows or digits) + 1 + digits + 1, digits + 1
    least = spec.data.min_text if isinstance(spec.data, SyntheticData) else 2
    num_text = least + (spec.batch.seq - rows - least) // 2
    # Three in five of the text tokens that follow text; images part the first two of them.
    pairs = num_text - 1 - (rows > 0)
    return rows + num_text, max(1, pairs * 3 // 5)
