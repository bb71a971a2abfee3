"""The `synthetic` data set: random tokens, images and clips at random places, for tests of layouts.

Decides: what a synthetic sample looks like. Lengths, image sizes (unless the spec sets one), places
and orders all vary, so that a layout that confuses two of them computes a different loss.
Relies on: `random_draws` for words that depend only on (seed, split, index).
Leaves: a learnable task to `digits`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import Dataset, Media, TokenColumn
from mimo_launch.data.order.packing import count_labels
from mimo_launch.data.random_draws import (
    Draws,
    Purpose,
    Split,
    below,
    generator,
    order_of,
    pick,
    split_key,
    threshold,
)
from mimo_launch.data.sample_sizes import largest_image, longest_sample, sizes_drawn, sizes_in_tiles
from mimo_launch.data.samples.token_columns import at_labels
from mimo_launch.data.shared_images import (
    ImageSize,
    makers,
    shown_together,
    spans_to_make,
    temporal_patches,
    upstream_of,
)
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD, placeholder_id, vocab_size
from mimo_launch.layout.step_data import ImageSpan, SampleData, input_shape, is_array_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec, SyntheticData

HELDOUT_SAMPLES = 1 << 20
# A generator reads at most this many rows of language for an image; a text has two tokens.
MAX_READS = 2
# The spans of the temporal patches of one image, by module, not placed yet.
_Patches = tuple[dict[str, ImageSpan], ...]
# Images of so many different sizes are kept ready.
_MAX_SIZES = 1 << 14
# Random words per image: presence, height, width, turn and place; with videos, one more for the
# number of temporal patches.
_WORDS_PER_IMAGE = 5
# The stream of random words for columns: after those of modules and documents.
_COLUMNS = 1 << 10


class SyntheticSamples(Dataset):
    """The `synthetic` data set; see `dataset.Dataset` for what the methods return."""

    def __init__(self, spec: Spec, data: SyntheticData) -> None:
        """Prepare the index.

        Raises:
            ValueError: The largest images leave no room for text in `batch.seq`, the vocabulary
                holds placeholders only, an encoder reads neither images nor clips, or no image
                has the patches of a row.
        """
        if longest_sample(spec) > spec.batch.seq:
            raise ValueError(f"images and text take {longest_sample(spec)} > seq {spec.batch.seq}")
        self._spec, self._data, self._seq = spec, data, spec.batch.seq
        self._sizes: dict[str, tuple[tuple[ImageSize, ImageSize], ...]] = {}
        self._tiled: dict[str, list[ImageSize]] = {}
        self._kinds = _kinds_with_input(spec)
        for name in self._kinds:
            self._sizes[name] = sizes_drawn(spec, name)
            self._tiled[name] = sizes_in_tiles(spec, name)
        read = spec.sources_of(LANGUAGE)
        self._placeholders = {name: placeholder_id(spec, name) for name in read}
        self._depths = kind_of(spec.language.model).depths
        self._num_text_tokens = vocab_size(spec) - len(read)
        if self._num_text_tokens < 1:
            raise ValueError("the vocabulary has no token beside the placeholders")
        self._text_limit = threshold(data.text_only)
        # One slot per image that a sample may have: all modules for the first image, then for the
        # next. Of the modules that see the same image, the first decides its presence, size and
        # turn.
        self._slots = [(name, i) for i in range(data.max_images) for name in read]
        # The modules that may decide the size of an image that language reads.
        self._sizing = {
            name: sorted(({name} | upstream_of(spec, name)) & self._kinds.keys()) for name in read
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
            split: Draws(split_key(seed, split, Purpose.SYNTHETIC_PLAN), width) for split in splits
        }
        self._content = {
            split: split_key(seed, split, Purpose.SYNTHETIC_CONTENT) for split in splits
        }

    def num_samples(self, split: Split) -> int:
        """Return the number of samples in the split."""
        return self._data.samples if split == "train" else HELDOUT_SAMPLES

    def describe(self, split: Split, index: int) -> SampleData:
        """Return the lengths and positions of a sample, without its pixels."""
        drawn = self._drawn(split, index)
        if (loss := self._spec.language.loss) is not None and loss.counts is not None:
            drawn = replace(drawn, counted=float(self.columns(split, index)[loss.counts].sum()))
        if not self._depths:
            return drawn
        _, labels = self.text(split, index)
        counts = count_labels(labels, self.documents(split, index), self._depths)
        return replace(drawn, labels_ahead=counts)

    def _drawn(self, split: Split, index: int) -> SampleData:
        """Return the same, except for the fields that depend on tokens."""
        if not 0 <= index < self.num_samples(split):
            raise IndexError(f"sample {index} of {self.num_samples(split)} ({split})")
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

    def length(self, split: Split, index: int) -> int:
        """Return the number of tokens of a sample."""
        return self._drawn(split, index).num_tokens

    def text(self, split: Split, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return tokens and labels, int64 [seq]; 3 in 5 text tokens that follow text are labels."""
        described = self._drawn(split, index)
        tokens = np.full(self._seq, PAD, dtype=np.int64)
        labels = np.full(self._seq, IGNORE_LABEL, dtype=np.int64)
        is_text = np.zeros(self._seq, dtype=np.bool_)
        is_text[: described.num_tokens] = True
        for encoder, placeholder in self._placeholders.items():
            for span in described.spans.get(encoder, ()):
                rows = slice(span.position, span.position + span.rows)
                tokens[rows] = placeholder
                is_text[rows] = False
        words = generator(self._content[split], index).random_raw(2 * described.num_tokens)
        values = below(words[: described.num_tokens], self._num_text_tokens)
        for placeholder in sorted(self._placeholders.values()):
            values += values >= placeholder
        tokens[: described.num_tokens][is_text[: described.num_tokens]] = values[
            is_text[: described.num_tokens]
        ]
        # The last pair always counts (see `describe`), the others at random.
        pairs = np.flatnonzero(is_text[:-1] & is_text[1:])
        order = order_of(words[described.num_tokens :][: len(pairs) - 1])
        chosen = np.append(pairs[order[: described.num_labels - 1]], pairs[-1])
        labels[chosen] = tokens[chosen + 1]
        return tokens, labels

    def columns(self, split: Split, index: int) -> dict[str, TokenColumn]:
        """Return random numbers between 0 and 1, or random tokens, for each label."""
        loss = self._spec.language.loss
        if loss is None or not loss.columns:
            return {}
        places = np.flatnonzero(self.text(split, index)[1] != IGNORE_LABEL)
        drawn = np.random.Generator(generator(self._content[split], index, _COLUMNS))
        found: dict[str, TokenColumn] = {}
        for name, width in loss.columns.items():
            shape = (len(places), width) if width > 1 else (len(places),)
            is_ids, words = name in loss.token_columns, vocab_size(self._spec)
            found[name] = drawn.integers(words, size=shape) if is_ids else drawn.random(shape)
        return at_labels(found, places, self._seq)

    def images(self, split: Split, index: int, encoder: str) -> Sequence[Media]:
        """Return standard normal numbers in the shape of each image or clip, or random codes."""
        kind = self._kinds[encoder]
        stream = 1 + list(self._kinds).index(encoder)
        normal = np.random.Generator(generator(self._content[split], index, stream))
        spans = self._drawn(split, index).spans.get(encoder, ())
        shapes = [input_shape(kind, span) for span in spans]
        if (codes := kind.codes) is not None:
            ends = {codes.start_code, codes.end_code}
            said = np.array([code for code in range(codes.vocab) if code not in ends], np.int64)
            if codes.later_vocab is None:
                return [normal.choice(said, shape) for shape in shapes]
            first = [normal.choice(said, (1, shape[1])) for shape in shapes]
            later = [normal.integers(codes.later_vocab, size=(n - 1, m)) for n, m in shapes]
            return [np.concatenate(both) for both in zip(first, later, strict=True)]
        drawn = [normal.standard_normal(shape, dtype=np.float32) for shape in shapes]
        if kind.clips is None or kind.clips.chunk_frames is None:
            return drawn
        # Some clips in chunks are a frame shorter, if that leaves them as many tokens.
        shorter = [each[:, (index + number) % 2 :] for number, each in enumerate(drawn)]
        return [
            short if is_array_of(kind, span, short.shape) else each
            for each, short, span in zip(drawn, shorter, spans, strict=True)
        ]

    def documents(self, split: Split, index: int) -> npt.NDArray[np.int64]:
        """Return the documents of a sample, cut at random before text tokens without a label."""
        documents = np.zeros(self._seq, dtype=np.int64)
        if self._data.max_documents == 1:
            return documents
        tokens, labels = self.text(split, index)
        placed = np.isin(tokens, list(self._placeholders.values()))
        last = self._drawn(split, index).num_tokens
        cuts = np.flatnonzero((labels[: last - 1] == IGNORE_LABEL) & ~placed[1:last]) + 1
        stream = 1 + len(self._kinds)
        words = generator(self._content[split], index, stream).random_raw(1 + len(cuts))
        num_cuts = min(len(cuts), pick(int(words[0]), self._data.max_documents))
        documents[cuts[order_of(words[1:])[:num_cuts]]] = 1
        return np.cumsum(documents)

    def pixels(self, generator: str, image: Media) -> npt.NDArray[np.uint8] | None:
        """Return values from -2 to 2 as black to white; None for codes, which are not pixels."""
        if image.dtype == np.int64:
            return None
        return np.round(255 * (image / 4 + 0.5).clip(0, 1)).astype(np.uint8)

    def words(self, tokens: Sequence[int]) -> str:
        """Return the token ids as text."""
        return " ".join(map(str, tokens))

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
        clips = self._kinds[encoder].clips
        if clips is None or not clips.drops_silence:
            return 0
        tokens = clips.tokens_of(min(clips.frames, self._data.max_frames))
        return pick(word, 1 + min(clips.stack - 1, tokens - width * clips.stack))


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
