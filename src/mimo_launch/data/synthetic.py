"""The `synthetic` data set: random tokens, images and clips at random places, for tests of layouts.

Decides: what a synthetic sample looks like. Lengths, image sizes (unless the spec sets one), places
and orders all vary, so that a layout that confuses two of them computes a different loss.
Relies on: `synthetic_draws` for lengths, sizes and places; `random_draws` for words that depend on
(seed, split, index) only.
Leaves: a learnable task to `digits`.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import Dataset, Media, TokenColumn, check_ids, chosen, no_sample
from mimo_launch.data.order.packing import count_labels
from mimo_launch.data.random_draws import (
    Purpose,
    Split,
    below,
    generator,
    order_of,
    pick,
    split_key,
)
from mimo_launch.data.record_facts import RecordFacts, facts_of
from mimo_launch.data.sample_sizes import longest_sample
from mimo_launch.data.samples.token_columns import at_labels
from mimo_launch.data.synthetic_draws import SyntheticDraws
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD, placeholder_id, vocab_size
from mimo_launch.layout.step_data import SampleData, input_shape, is_array_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec, SyntheticData

HELDOUT_SAMPLES = 1 << 20
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
        self._draws = SyntheticDraws(spec, data)
        self._kinds = self._draws.kinds
        read = spec.sources_of(LANGUAGE)
        self._placeholders = {name: placeholder_id(spec, name) for name in read}
        self._depths = kind_of(spec.language.model).depths
        loss = spec.language.loss
        # The column that a loss of language counts.
        self._counts = None if loss is None else loss.counts
        self._num_text_tokens = vocab_size(spec) - len(read)
        if self._num_text_tokens < 1:
            raise ValueError("the vocabulary has no token beside the placeholders")
        splits: tuple[Split, Split] = ("train", "heldout")
        seed = spec.train.seed
        self._content = {
            split: split_key(seed, split, Purpose.SYNTHETIC_CONTENT) for split in splits
        }

    def num_samples(self, split: Split) -> int:
        """Return the number of samples in the split."""
        return self._data.samples if split == "train" else HELDOUT_SAMPLES

    def describe(self, split: Split, index: int) -> SampleData:
        """Return the lengths and positions of a sample, without its pixels."""
        drawn = self._drawn(split, index)
        if self._counts is not None:
            drawn = replace(drawn, counted=float(self.columns(split, index)[self._counts].sum()))
        if not self._depths:
            return drawn
        _, labels = self.text(split, index)
        counts = count_labels(labels, self.documents(split, index), self._depths)
        return replace(drawn, labels_ahead=counts)

    def facts(self, split: Split, ids: npt.NDArray[np.int64]) -> RecordFacts:
        """Return what `describe` says of many samples, as columns."""
        check_ids(ids, self.num_samples(split), split)
        found = self._draws.facts(split, ids)

        @cache
        def described() -> RecordFacts:
            return facts_of([self.describe(split, index) for index in ids.tolist()])

        # These depend on tokens, which are drawn sample by sample.
        return replace(
            found,
            ahead=(lambda: described().ahead()) if self._depths else found.ahead,
            counted=(lambda: described().terms.astype(np.float64)) if self._counts else None,
        )

    def _drawn(self, split: Split, index: int) -> SampleData:
        """Return a sample, except for the fields that depend on tokens."""
        if not 0 <= index < self.num_samples(split):
            raise no_sample(index, self.num_samples(split), f"({split})")
        return self._draws.sample(split, index)

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

    def images(
        self, split: Split, index: int, encoder: str, only: Collection[int] | None = None
    ) -> Sequence[Media]:
        """Return standard normal numbers in the shape of each image or clip, or random codes."""
        return chosen(self._images(split, index, encoder), only)

    def _images(self, split: Split, index: int, encoder: str) -> Sequence[Media]:
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
