"""Samples of shards that are not here, made as `data.expect` describes them.

Decides: how many are made, and what each holds: its numbers are spread evenly over what is said,
and independent of each other. Images follow the first token, one encoder after another, then text.
Relies on: `sample_sizes` and `nominal_samples` for sizes that are not said, `shared_images` for the
rows that modules make of an image together.
Leaves: a file of samples to `sample_statistics`, their order and packs to `known_order`.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from math import isqrt, sqrt

import numpy as np

from mimo_launch.data.nominal_samples import nominal_image
from mimo_launch.data.sample_sizes import cut_of, only_size, sizes_in_tiles
from mimo_launch.data.shared_images import (
    ImageSize,
    frame_size,
    made_together,
    makers,
    spans_to_make,
    upstream_spans,
)
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import ImageSpan, SampleData
from mimo_launch.processors.recipes import video_reader_of, video_recipe_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.expect import ExpectedSamples, OfModules, Spread
from mimo_launch.spec.spec import Spec, UserData

# Samples that are made; an epoch repeats them.
_MADE = 512
# Multiples of the square roots of primes are spread evenly, and independent of each other.
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)

SizeOf = Callable[[str], ImageSize]


class NoRoom(ValueError):
    """No sample that the spec expects fits into a sequence."""


def expected_samples(spec: Spec, data: UserData, said: ExpectedSamples) -> list[SampleData]:
    """Return samples as `data.expect` describes them, without those that are too long to train on.

    Raises: NoRoom.
    """
    made = (_Sample(spec, data, said, number).made() for number in range(_MADE))
    found = [each for each in made if each is not None]
    if not found:
        raise NoRoom(f"no sample has room in `batch.seq` {spec.batch.seq}")
    return found


class _Sample:
    """One sample, by its number."""

    def __init__(self, spec: Spec, data: UserData, said: ExpectedSamples, number: int) -> None:
        self._spec, self._data, self._said = spec, data, said
        # The next place between 0 and 1 in a spread: another one for each number of the sample.
        self._places = (
            (number + 0.5) * sqrt(_PRIMES[use % len(_PRIMES)]) * (1 + use // len(_PRIMES)) % 1
            for use in count()
        )
        self._spans: dict[str, tuple[ImageSpan, ...]] = {}
        self._rows = 0

    def made(self) -> SampleData | None:
        """Return the sample; None if it is longer than a sequence and left out."""
        said, seq = self._said, self._spec.batch.seq
        text = max(2, self._pick(said.text))
        if next(self._places) >= said.text_only:
            self._show()
        length = self._rows + text
        if length > seq:
            if self._data.too_long == "drop" or self._rows + 2 > seq:
                return None
            text, length = seq - self._rows, seq
        self._make(length)
        # As in a nominal sample: three in five text tokens that follow text are learnt.
        labels = max(1, (text - 1 - (self._rows > 0)) * 3 // 5)
        depths = range(1, kind_of(self._spec.language.model).depths + 1)
        ahead = tuple(max(0, min(labels, length - 1 - depth)) for depth in depths)
        return SampleData(0, length, labels, self._spans, labels_ahead=ahead)

    def _pick(self, spread: Spread) -> int:
        """Return a number of a spread: the next whole number for a mean, or between percentiles."""
        place = next(self._places)
        if isinstance(spread, tuple):
            return round(float(np.interp(place, np.linspace(0, 1, len(spread)), spread)))
        return int(spread + place)

    def _pick_of(self, spreads: OfModules, module: str) -> int:
        """Return a number of the spread of a module, 0 if it has none."""
        if isinstance(spreads, dict):
            named = [each for each in self._together(module) if each in spreads]
            return self._pick(spreads[named[0]]) if named else 0
        return self._pick(spreads)

    def _together(self, module: str) -> list[str]:
        read = self._spec.sources_of(LANGUAGE)
        return made_together(self._spec, module) if module in read else [module]

    def _show(self) -> None:
        """Add the images, clips and videos that language reads."""
        spec = self._spec
        reader = video_reader_of(spec)
        for name in spec.sources_of(LANGUAGE):
            for _ in range(self._pick_of(self._said.images, name)):
                size_of = partial(self._size_of, {})
                for tile in range(self._num_tiles(name, size_of)):
                    self._place(name, size_of, None, joined=tile > 0)
            if reader is not None and reader in made_together(spec, name):
                for _ in range(self._pick(self._said.videos)):
                    self._show_video(name, reader)

    def _show_video(self, name: str, reader: str) -> None:
        recipe = video_recipe_of(self._spec, reader)
        number = max(1, self._pick(self._said.temporal_patches))
        on_axis = recipe is not None and recipe.videos.on_axis
        rule = kind_of(self._spec.modules[reader].model).tokens.tiles
        rows = self._said.frame_rows and max(1, self._pick(self._said.frame_rows))
        size = _near_square(rows) if rows else nominal_image(self._spec, reader)
        for patch in range(number):
            if rule is not None:
                size = frame_size(rule, is_last=patch == number - 1)
            later = patch if on_axis and patch else None
            self._place(name, partial(_always, size), later, joined=patch > 0)

    def _place(self, name: str, size_of: SizeOf, later: int | None, *, joined: bool) -> None:
        at = 1 + self._rows
        found = list(upstream_spans(self._spec, name, at, size_of, later, joined=joined))
        for module, span in found:
            self._spans[module] = (*self._spans.get(module, ()), span)
        self._rows += found[0][1].rows

    def _num_tiles(self, name: str, size_of: SizeOf) -> int:
        """Return how many images one image becomes where a processor cuts images."""
        if cut_of(self._spec, name) is None or (rows := self._rows_of(name)) is None:
            return 1
        return max(1, round(rows / max(1, size_of(name).rows)))

    def _rows_of(self, name: str) -> int | None:
        """Return the rows of an image of a module, if the spec says them."""
        rows = self._said.rows
        if rows is None or (isinstance(rows, dict) and not {*self._together(name)} & {*rows}):
            return None
        return max(1, self._pick_of(rows, name))

    def _size_of(self, known: dict[str, ImageSize], name: str) -> ImageSize:
        """Return the size of an image for a module; `known` keeps those of one image."""
        if name not in known:
            rows = self._rows_of(name)
            if (only := only_size(self._spec, name)) is not None or rows is None:
                known[name] = only or nominal_image(self._spec, name)
            elif tiled := sizes_in_tiles(self._spec, name):
                known[name] = min(tiled, key=lambda size: abs(size.rows - rows))
            elif clips := kind_of(self._spec.modules[name].model).clips:
                known[name] = ImageSize(1, min(rows, clips.max_rows))
            else:
                known[name] = _near_square(rows)
        return known[name]

    def _make(self, length: int) -> None:
        """Add what generators learn to make, from the last tokens."""
        reads = min(self._data.target_reads, length)
        for generator in makers(self._spec):
            for _ in range(self._pick(self._said.targets)):
                size = self._size_of({}, generator)
                span = ImageSpan(length - reads, size.height, size.width, reads=reads)
                for name, made in spans_to_make(self._spec, generator, span):
                    self._spans[name] = (*self._spans.get(name, ()), made)


def _always(size: ImageSize, name: str) -> ImageSize:
    del name
    return size


def _near_square(rows: int) -> ImageSize:
    """Return a size with about these rows, whose sides are about equal."""
    height = isqrt(rows)
    return ImageSize(height, max(1, round(rows / height)))
