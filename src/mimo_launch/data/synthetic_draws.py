"""How the lengths, images and places of `synthetic` samples are drawn, one by one or as columns.

Decides: which random word means what.
Relies on: `random_draws` for words that depend only on (seed, split, index).
Leaves: tokens, labels and pixels to `synthetic`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mimo_launch.data.random_draws import (
    Draws,
    Purpose,
    Split,
    Words,
    below,
    is_below,
    pick,
    split_key,
    threshold,
)
from mimo_launch.data.record_facts import (
    ImageFacts,
    Int64s,
    RecordFacts,
    distinct,
    shape_of,
    spread_out,
)
from mimo_launch.data.sample_sizes import largest_image, sizes_drawn, sizes_in_tiles
from mimo_launch.data.shared_images import (
    ImageSize,
    makers,
    shown_together,
    spans_to_make,
    temporal_patches,
    upstream_of,
)
from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import ImageSpan, SampleData
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec, SyntheticData

# A generator reads at most this many rows of language for an image; a text has two tokens.
MAX_READS = 2
# The spans of the temporal patches of one image, by module, not placed yet.
_Patches = tuple[dict[str, ImageSpan], ...]
# Images of so many different sizes are kept ready.
_MAX_SIZES = 1 << 14
# Random words per image: presence, height, width, turn and place; with videos, one more for the
# number of temporal patches.
_WORDS_PER_IMAGE = 5
# Numbers of kinds of images stay below this times the sizes of one module.
_MOST_CODES = 1 << 30
_ONLY = np.zeros(1, dtype=np.int64)


@frozen
class _Shown:
    """The images of one slot: the sample and the place of each, and the rows in the text."""

    samples: Int64s
    places: Words
    rows: Int64s


class SyntheticDraws:
    """What is drawn of synthetic samples; `kinds` are those of modules with an input of their own.

    Raises: ValueError if an encoder reads neither images nor clips, or no image has the patches of
    a row.
    """

    def __init__(self, spec: Spec, data: SyntheticData) -> None:
        self._spec, self._data, self._seq = spec, data, spec.batch.seq
        self._sizes: dict[str, tuple[tuple[ImageSize, ImageSize], ...]] = {}
        self._tiled: dict[str, list[ImageSize]] = {}
        self.kinds = _kinds_with_input(spec)
        for name in self.kinds:
            self._sizes[name] = sizes_drawn(spec, name)
            self._tiled[name] = sizes_in_tiles(spec, name)
        read = spec.sources_of(LANGUAGE)
        self._text_limit = threshold(data.text_only)
        # One slot per image that a sample may have: all modules for the first image, then for the
        # next. Of the modules that see the same image, the first decides its presence, size and
        # turn.
        self._slots = [(name, i) for i in range(data.max_images) for name in read]
        # The modules that may decide the size of an image that language reads.
        self._sizing = {
            name: sorted(({name} | upstream_of(spec, name)) & self.kinds.keys()) for name in read
        }
        self._patches = lru_cache(maxsize=_MAX_SIZES)(self._make_patches)
        self._extra_limit = max(self._text_limit, threshold(0.5))
        # Then one slot for each image to make.
        self._made = [(name, i) for i in range(data.max_images) for name in makers(spec)]
        # A connector that uses the rows it reads as its tokens needs two: one sees only itself.
        self._least_reads = {name: 1 + _joins_rows(spec, name) for name in spec.generators}
        self._per_image = _WORDS_PER_IMAGE + (data.max_temporal_patches > 1)
        first = shown_together(spec)
        # For each slot, the first of its random words.
        self._words_at = [
            self._slots.index((first[name], image)) * self._per_image for name, image in self._slots
        ]
        width = 1 + self._per_image * (len(self._slots) + len(self._made))
        seed = spec.train.seed
        splits: tuple[Split, Split] = ("train", "heldout")
        self._draws = {
            split: Draws(
                split_key(seed, split, Purpose.SYNTHETIC_PLAN),
                width,
                data.samples if split == "train" else 0,
            )
            for split in splits
        }

    def sample(self, split: Split, index: int) -> SampleData:
        """Return a sample, except for the fields that depend on tokens."""
        length, *words = self._draws[split].row(index)
        turns: list[tuple[int, str, _Patches]] = []
        places: list[int] = []
        has_image: set[str] = set()
        for number, (name, image) in enumerate(self._slots):
            first = self._words_at[number]
            present, tall, wide, turn, _, *shots = words[first : first + self._per_image]
            # A sample with a first image has each one beyond `min_images` half of the time.
            limit = self._extra_limit if image else self._text_limit
            chosen = present >= limit or 0 < image < self._data.min_images
            if chosen and (image == 0 or name in has_image):
                has_image.add(name)
                sizes = tuple(
                    (each, self._size(each, tall=tall, wide=wide)) for each in self._sizing[name]
                )
                several = 1 + pick(shots[0], self._data.max_temporal_patches) if shots else 1
                turns.append((turn, name, self._patches(name, several, sizes)))
                places.append(words[number * self._per_image + _WORDS_PER_IMAGE - 1])
        rows = sum(each[name].rows for _, name, patches in turns for each in patches)
        least = self._data.min_text
        num_text = least + pick(length, self._data.most_text(self._seq - rows) - least + 1)
        # An image precedes one of the text tokens 0 to num_text - 2: the last two text tokens stay
        # adjacent, so every sample has a label, and every image has one after it.
        befores = sorted(pick(place, num_text - 1) for place in places)
        spans: dict[str, tuple[ImageSpan, ...]] = {}
        rows_so_far = 0
        in_turn = sorted(turns, key=lambda each: each[:2])
        for before, (_, name, patches) in zip(befores, in_turn, strict=True):
            for of_image in patches:
                for module, span in of_image.items():
                    placed = replace(span, position=before + rows_so_far)
                    spans[module] = (*spans.get(module, ()), placed)
                rows_so_far += of_image[name].rows
        for number, (name, image) in enumerate(self._made, len(self._slots)):
            at = number * self._per_image
            present, tall, wide, reads, place, *_ = words[at : at + self._per_image]
            if present >= (self._extra_limit if image else self._text_limit):
                size, least = self._size(name, tall=tall, wide=wide), self._least_reads[name]
                read = least + pick(reads, MAX_READS + 1 - least)
                position = pick(place, num_text + rows - read + 1)
                made = ImageSpan(position, size.height, size.width, reads=read)
                for module, span in spans_to_make(self._spec, name, made):
                    spans[module] = (*spans.get(module, ()), span)
        # Every place except the first separates two text tokens.
        pairs = num_text - 1 - len(set(befores) - {0})
        return SampleData(index, num_text + rows, max(1, pairs * 3 // 5), spans)

    def facts(self, split: Split, ids: Int64s) -> RecordFacts:
        """Return the same of many samples, as columns."""
        length, *words = self._draws[split].rows(ids).T
        images: dict[str, list[ImageFacts]] = {}
        shown = self._show(words, images)
        rows = np.zeros(len(ids), dtype=np.int64)
        for each in shown:
            rows[each.samples] += each.rows
        least, room = self._data.min_text, self._seq - rows
        most = np.minimum(room, self._data.max_text or room)
        num_text = least + below(length, most - least + 1)
        # For each slot, the text token that its image precedes; the first separates no two tokens.
        befores = np.zeros((len(ids), len(shown)), dtype=np.int64)
        for slot, each in enumerate(shown):
            befores[each.samples, slot] = below(each.places, num_text[each.samples] - 1)
        befores.sort(axis=1)
        is_new = np.diff(befores, axis=1, prepend=0) > 0
        pairs = num_text - 1 - is_new.sum(axis=1)
        self._make(words, images)
        return RecordFacts(
            num_text + rows,
            np.maximum(1, pairs * 3 // 5),
            {name: _in_order(parts) for name, parts in images.items()},
            lambda: np.zeros((0, len(ids)), dtype=np.int64),
        )

    def _show(self, words: list[Words], images: dict[str, list[ImageFacts]]) -> list[_Shown]:
        """Return what language reads in each slot, and add the images of all modules."""
        found: list[_Shown] = []
        has_image: dict[str, npt.NDArray[np.bool_]] = {}
        for number, (name, image) in enumerate(self._slots):
            first = self._words_at[number]
            present, tall, wide, _, _, *shots = words[first : first + self._per_image]
            chosen = ~is_below(present, self._extra_limit if image else self._text_limit)
            if image:
                chosen = (chosen | (image < self._data.min_images)) & has_image[name]
            else:
                has_image[name] = chosen
            here = np.flatnonzero(chosen)
            which, kinds = self._drawn_patches(
                name, tall[here], wide[here], [each[here] for each in shots]
            )
            rows = np.array([sum(e[name].rows for e in kind) for kind in kinds], dtype=np.int64)
            place = words[number * self._per_image + _WORDS_PER_IMAGE - 1][here]
            found.append(_Shown(here, place, rows[which]))
            _add(images, here, which, [_shapes(kind) for kind in kinds])
        return found

    def _make(self, words: list[Words], images: dict[str, list[ImageFacts]]) -> None:
        """Add the images that generators make."""
        for number, (name, image) in enumerate(self._made, len(self._slots)):
            at = number * self._per_image
            present, tall, wide, reads, *_ = words[at : at + self._per_image]
            here = np.flatnonzero(
                ~is_below(present, self._extra_limit if image else self._text_limit)
            )
            which, kinds = self._drawn_targets(name, tall[here], wide[here], reads[here])
            _add(images, here, which, [_shapes(kind) for kind in kinds])

    def _drawn_patches(
        self, name: str, tall: Words, wide: Words, shots: list[Words]
    ) -> tuple[Int64s, list[_Patches]]:
        """Return the kind of each image that language reads, and its spans by its kind."""
        numbers = [below(each, self._data.max_temporal_patches) for each in shots]
        codes, space = _ONLY, 1
        parts = [(each, self._data.max_temporal_patches) for each in numbers]
        parts += [self._size_codes(each, tall, wide) for each in self._sizing[name]]
        for more, sizes in parts:
            codes, space = codes * sizes + more, space * sizes
            if space > _MOST_CODES:
                values, codes = np.unique(codes, return_inverse=True)
                space = len(values)

        def make(at: int) -> _Patches:
            sizes = tuple(
                (each, self._size(each, tall=int(tall[at]), wide=int(wide[at])))
                for each in self._sizing[name]
            )
            return self._patches(name, 1 + sum(int(each[at]) for each in numbers), sizes)

        return _grouped(codes + np.zeros_like(tall, dtype=np.int64), space, make)

    def _drawn_targets(
        self, name: str, tall: Words, wide: Words, reads: Words
    ) -> tuple[Int64s, list[_Patches]]:
        """Return the kind of each image that a generator makes, and its spans by its kind."""
        least = self._least_reads[name]
        read = least + below(reads, MAX_READS + 1 - least)
        codes, sizes = self._size_codes(name, tall, wide)

        def make(at: int) -> _Patches:
            size = self._size(name, tall=int(tall[at]), wide=int(wide[at]))
            made = ImageSpan(0, size.height, size.width, reads=int(read[at]))
            return tuple({each: span} for each, span in spans_to_make(self._spec, name, made))

        return _grouped(codes * (MAX_READS + 1) + read, sizes * (MAX_READS + 1), make)

    def _size_codes(self, encoder: str, tall: Words, wide: Words) -> tuple[Int64s, int]:
        """Return a number for each size that `_size` draws, and how many numbers there are."""
        if tiled := self._tiled[encoder]:
            return below(tall, len(tiled)), len(tiled)
        heights = self._sizes[encoder]
        least = np.array([narrowest.width for narrowest, _ in heights])
        most = np.array([widest.width for _, widest in heights])
        height = below(tall, len(heights))
        width = least[height] + below(wide, most[height] - least[height] + 1)
        codes, space = height * (1 + most.max()) + width, len(heights) * int(1 + most.max())
        clips = self.kinds[encoder].clips
        if clips is None or not clips.drops_silence:
            return codes, space
        tokens = clips.tokens_of(min(clips.frames, self._data.max_frames))
        loose = below(tall, 1 + np.minimum(clips.stack - 1, tokens - width * clips.stack))
        return codes * clips.stack + loose, space * clips.stack

    def _make_patches(
        self, name: str, number: int, sizes: tuple[tuple[str, ImageSize], ...]
    ) -> _Patches:
        """Return the spans of an image for a module that language reads and modules upstream."""
        return tuple(temporal_patches(self._spec, name, number, dict(sizes).__getitem__))

    def _size(self, encoder: str, *, tall: int, wide: int) -> ImageSize:
        """Return height and width in rows, drawn within the limits of the data unless fixed."""
        if tiled := self._tiled[encoder]:
            return tiled[pick(tall, len(tiled))]
        heights = self._sizes[encoder]
        narrowest, widest = heights[pick(tall, len(heights))]
        width = narrowest.width + pick(wide, widest.width - narrowest.width + 1)
        return ImageSize(narrowest.height, width, self._loose(encoder, width, tall))

    def _loose(self, encoder: str, width: int, word: int) -> int:
        """Return the number of loose tokens of a clip, after the tokens of its rows."""
        clips = self.kinds[encoder].clips
        if clips is None or not clips.drops_silence:
            return 0
        tokens = clips.tokens_of(min(clips.frames, self._data.max_frames))
        return pick(word, 1 + min(clips.stack - 1, tokens - width * clips.stack))


def _grouped(
    codes: Int64s, space: int, make: Callable[[int], _Patches]
) -> tuple[Int64s, list[_Patches]]:
    """Return the group of each image, by its code, and what `make` gives for one of each group."""
    values, _ = distinct(codes, space)
    which = np.searchsorted(values, codes)
    one = np.zeros(len(values), dtype=np.int64)
    one[which] = np.arange(len(codes))
    return which, [make(at) for at in one.tolist()]


def _shapes(patches: _Patches) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes of the images of each module in all temporal patches."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for spans in patches:
        for module, span in spans.items():
            found.setdefault(module, []).append(shape_of(span))
    return found


def _add(
    images: dict[str, list[ImageFacts]],
    samples: Int64s,
    which: Int64s,
    kinds: list[dict[str, list[tuple[int, ...]]]],
) -> None:
    """Add the images of samples, of which each has the shapes of a kind."""
    for module in dict.fromkeys(name for kind in kinds for name in kind):
        of_kind = [kind.get(module, []) for kind in kinds]
        table = np.array([shape for shapes in of_kind for shape in shapes], dtype=np.int64)
        ends = np.cumsum([len(shapes) for shapes in of_kind])
        place, at = spread_out(np.concatenate([[0], ends])[which], ends[which])
        images.setdefault(module, []).append(ImageFacts(samples[place], table[at]))


def _in_order(parts: list[ImageFacts]) -> ImageFacts:
    """Return images in the order of their samples."""
    if len(parts) == 1:
        return parts[0]
    record = np.concatenate([part.record for part in parts])
    order = np.argsort(record, kind="stable")
    return ImageFacts(record[order], np.concatenate([part.shapes for part in parts])[order])


def _kinds_with_input(spec: Spec) -> dict[str, ModelKind]:
    """Return the kinds of modules that have an input of their own from a sample, or make one.

    Raises: ValueError if a module reads nothing, or no image or clip has the patches of a row.
    """
    found = {}
    for name, module in (spec.encoders | spec.generators).items():
        kind = kind_of(module.model)
        if kind.input is None:
            if spec.sources_of(name):
                continue
            raise ValueError(f"{name}: {module.model.kind} cannot read synthetic data")
        if largest_image(spec, name).rows == 0:
            patches = kind.tokens.per_row
            raise ValueError(f"{name}: no image or clip holds the {patches} patches of a row")
        found[name] = kind
    return found


def _joins_rows(spec: Spec, name: str) -> bool:
    """Return whether a connector without its own tokens is between language and a module."""
    sources = [each for each in spec.sources_of(name) if each != LANGUAGE]
    joins = (not kind_of(spec.modules[each].model).reading.beside for each in sources)
    return any(joins) or any(_joins_rows(spec, each) for each in sources)
