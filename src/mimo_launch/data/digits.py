"""The `digits` data set: strips of real handwritten digits that a model reads or draws.

A sample is BOS, the patches of the strip for each encoder in the order of the spec, ASK, the
digits, EOS. A share of the samples spells the digits in number words instead of showing them. A
sample to draw is BOS, DRAW, the digits in number words, EOS; the image of each digit is generated
from the language row at its word.

Decides: which images a strip shows, and how their pixels are scaled.
Relies on: `digit_images` for the images and the held-out split.
Leaves: cutting a strip into patches to the encoder; rows are patches or, with pixel shuffle,
squares of patches, in row-major order.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import Dataset, Media, check_ids, chosen, no_sample
from mimo_launch.data.digit_images import (
    PIXEL_DEVIATION,
    PIXEL_MEAN,
    PIXEL_RANGE,
    image_split,
    load_digits,
    nearest_digits,
)
from mimo_launch.data.random_draws import (
    Draws,
    Purpose,
    Split,
    below,
    is_below,
    pick,
    split_key,
    threshold,
)
from mimo_launch.data.record_facts import RecordFacts, facts_of
from mimo_launch.data.sample_sizes import longest_sample, size_of_digit
from mimo_launch.data.shared_images import ImageSize, makers, spans_to_make, upstream_spans
from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import (
    ASK,
    BOS,
    DIGIT_SIDE,
    DRAW,
    EOS,
    FIRST_DIGIT,
    FIRST_WORD,
    IGNORE_LABEL,
    PAD,
    placeholder_id,
)
from mimo_launch.layout.step_data import ImageSpan, SampleData
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Codes, DigitsData, Images, Spec

# Strips are generated on demand, so this only has to exceed any sensible evaluation.
HELDOUT_STRIPS = 1 << 20


@frozen
class Strip:
    """The images of one sample, shown, spelled or to be drawn, from left to right."""

    images: tuple[int, ...]
    text_only: bool
    is_drawn: bool = False


@frozen
class _Shape:
    """What all samples with the same number of digits share, with an image or without."""

    num_digits: int
    num_tokens: int
    num_labels: int
    ask: int
    is_drawn: bool
    spans: dict[str, tuple[ImageSpan, ...]]

    def labels_after(self, tokens: int) -> int:
        """Return the number of labels after the first `tokens` tokens."""
        return max(0, self.num_labels - max(0, tokens - self.ask))

    def sample(self, index: int, depths: int) -> SampleData:
        """Return a sample of this shape."""
        # Labels after the first n tokens, of which the last one is ASK.
        ahead = tuple(self.labels_after(n) for n in range(1, depths + 1))
        return SampleData(index, self.num_tokens, self.num_labels, self.spans, labels_ahead=ahead)


class DigitStrips(Dataset):
    """The `digits` data set; see `dataset.Dataset` for what the methods return."""

    answer_ends = frozenset({EOS})
    scores = judges = True

    def __init__(self, spec: Spec, data: DigitsData) -> None:
        """Prepare the index.

        Raises:
            ValueError: `min_digits` exceeds `max_digits`, the longest strip does not fit in
                `batch.seq`, an encoder reads no images, or the square of a row does not tile a
                digit.
        """
        if data.min_digits > data.max_digits:
            raise ValueError(f"min_digits {data.min_digits} exceeds max_digits {data.max_digits}")
        if longest_sample(spec) > spec.batch.seq:
            raise ValueError(
                f"a strip takes {longest_sample(spec)} tokens, seq is {spec.batch.seq}"
            )
        self._data, self._seq = data, spec.batch.seq
        self._models: dict[str, Images | Codes] = {}
        for name, encoder in (spec.encoders | spec.generators).items():
            kind = kind_of(encoder.model)
            if kind.input is None and spec.sources_of(name):
                continue
            model = kind.images or kind.codes
            if model is None:
                raise ValueError(f"{name}: {encoder.model.kind} cannot read images")
            if isinstance(model, Images) and DIGIT_SIDE % model.row_side:
                raise ValueError(f"{name}: {model.row_side} does not divide {DIGIT_SIDE} pixels")
            if isinstance(model, Codes) and DIGIT_SIDE**2 % model.codebooks:
                raise ValueError(
                    f"{name}: {model.codebooks} does not divide {DIGIT_SIDE**2} pixels"
                )
            self._models[name] = model
        self._spec, read = spec, spec.sources_of(LANGUAGE)
        self._depths = kind_of(spec.language.model).depths
        self._placeholders = {name: placeholder_id(spec, name) for name in read}
        counts = range(data.min_digits, data.max_digits + 1)
        self._shapes = {(n, text): self._shape(n, text) for n in counts for text in (False, True)}
        self._drawn_shapes = {n: self._drawn_shape(n) for n in counts}
        # Strips that are shown, by their digits; strips that are spelled; strips to draw.
        shapes = [self._shapes[n, text] for text in (False, True) for n in counts]
        shapes += self._drawn_shapes.values()
        self._facts = facts_of([each.sample(0, self._depths) for each in shapes])
        # Without an encoder no strip can be read, so every sample spells its digits.
        self._text_limit = threshold(data.text_only if spec.encoders else 1.0)
        splits: tuple[Split, Split] = ("train", "heldout")
        # If there are several tasks, one more word chooses the task.
        width = 2 + data.max_digits + (len(data.tasks) > 1)
        self._draws = {
            split: Draws(
                split_key(spec.train.seed, split, Purpose.DIGITS),
                width,
                data.samples if split == "train" else 0,
            )
            for split in splits
        }
        self._images = image_split()

    def num_samples(self, split: Split) -> int:
        """Return the number of strips in the split."""
        return self._data.samples if split == "train" else HELDOUT_STRIPS

    def strip(self, split: Split, index: int) -> Strip:
        """Return the images of the sample, as indices into `load_digits()`.

        Raises:
            IndexError: `index` is not in [0, num_samples).
        """
        words, shape = self._look_up(split, index)
        pool = self._images[split]
        images = tuple(pool[pick(word, len(pool))] for word in words[2 : 2 + shape.num_digits])
        text_only = not shape.is_drawn and not shape.spans
        return Strip(images, text_only=text_only, is_drawn=shape.is_drawn)

    def describe(self, split: Split, index: int) -> SampleData:
        """Return the lengths and positions of a sample, without its pixels."""
        return self._look_up(split, index)[1].sample(index, self._depths)

    def facts(self, split: Split, ids: npt.NDArray[np.int64]) -> RecordFacts:
        """Return what `describe` says of many samples, as columns."""
        check_ids(ids, self.num_samples(split), split)
        words, tasks = self._draws[split].rows(ids), self._data.tasks
        number = len(self._drawn_shapes)
        count = below(words[:, 1], number)
        place = count + number * is_below(words[:, 0], self._text_limit)
        is_drawn = np.array([task == "draw" for task in tasks])
        task = below(words[:, -1], len(tasks)) if len(tasks) > 1 else np.zeros_like(count)
        return self._facts.take(np.where(is_drawn[task], 2 * number + count, place))

    def length(self, split: Split, index: int) -> int:
        """Return the number of tokens of a sample."""
        return self._look_up(split, index)[1].num_tokens

    def text(self, split: Split, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return tokens and labels, int64 [seq], with labels from ASK to the last digit."""
        _, shape = self._look_up(split, index)
        digits = self._digits(self.strip(split, index))
        tokens = np.full(self._seq, PAD, dtype=np.int64)
        labels = np.full(self._seq, IGNORE_LABEL, dtype=np.int64)
        tokens[0] = BOS
        if shape.is_drawn:
            tokens[shape.ask], tokens[shape.num_tokens - 1] = DRAW, EOS
            tokens[2 : shape.num_tokens - 1] = FIRST_WORD + digits
            return tokens, labels
        if not shape.spans:
            tokens[1 : shape.ask] = FIRST_WORD + digits
        for encoder, placeholder in self._placeholders.items():
            for span in shape.spans.get(encoder, ()):
                tokens[span.position : span.position + span.rows] = placeholder
        tokens[shape.ask] = ASK
        tokens[shape.ask + 1 : shape.num_tokens - 1] = FIRST_DIGIT + digits
        tokens[shape.num_tokens - 1] = EOS
        labels[shape.ask : shape.num_tokens - 1] = tokens[shape.ask + 1 : shape.num_tokens]
        return tokens, labels

    def images(
        self, split: Split, index: int, encoder: str, only: Collection[int] | None = None
    ) -> Sequence[Media]:
        """Return the strip [channels, 8, 8 x digits], all channels the same grey, -0.3 to 0.7.

        For a generator, return an image of each digit to draw, [channels, 8, 8], -0.8 to 1.8; or
        its pixels, row after row, as codes from 0 to 16, [codebooks, frames].
        """
        strip, makes = self.strip(split, index), encoder in self._spec.generators
        if strip.text_only or strip.is_drawn != makes:
            return []
        shown, model = load_digits().images[list(strip.images)], self._models[encoder]
        if isinstance(model, Codes):
            codes = [image.reshape(-1, model.codebooks).T.astype(np.int64) for image in shown]
            return chosen(codes, only)
        if not makes:
            shown = shown.transpose(1, 0, 2).reshape(1, DIGIT_SIDE, -1)
        divisor = PIXEL_DEVIATION if makes else PIXEL_RANGE
        scaled = (shown.astype(np.float32) - np.float32(PIXEL_MEAN)) / np.float32(divisor)
        return chosen([np.repeat(grey[None], model.channels, axis=0) for grey in scaled], only)

    def documents(self, split: Split, index: int) -> npt.NDArray[np.int64]:
        """Return zeros [seq]: a strip is one document."""
        self.describe(split, index)
        return np.zeros(self._seq, dtype=np.int64)

    def pixels(self, generator: str, image: Media) -> npt.NDArray[np.uint8] | None:
        """Return a drawn digit as pixels, black to white."""
        values = (_drawn(image) * PIXEL_DEVIATION + PIXEL_MEAN) / PIXEL_RANGE
        return np.round(255 * values.clip(0, 1)).astype(np.uint8)

    def words(self, tokens: Sequence[int]) -> str:
        """Return the digits of an answer, with a question mark for any other token."""
        digits = (token - FIRST_DIGIT for token in tokens)
        return "".join(str(digit) if 0 <= digit < 10 else "?" for digit in digits)

    def answer(self, split: Split, index: int) -> tuple[int, ...]:
        """Return the token ids of the digits; with encoders, spelled digits are not scored."""
        _, shape = self._look_up(split, index)
        if shape.is_drawn or (self._placeholders and not shape.spans):
            return ()
        digits = self._digits(self.strip(split, index))
        return tuple((FIRST_DIGIT + digits).tolist())

    def _look_up(self, split: Split, index: int) -> tuple[list[int], _Shape]:
        """Return the sample's random words and its shape, which the first two words decide."""
        if not 0 <= index < self.num_samples(split):
            raise no_sample(index, self.num_samples(split), f"({split})")
        words = self._draws[split].row(index)
        low, high = self._data.min_digits, self._data.max_digits
        count = low + pick(words[1], high - low + 1)
        tasks = self._data.tasks
        if tasks[pick(words[-1], len(tasks)) if len(tasks) > 1 else 0] == "draw":
            return words, self._drawn_shapes[count]
        return words, self._shapes[count, words[0] < self._text_limit]

    def _digits(self, strip: Strip) -> npt.NDArray[np.int64]:
        return load_digits().labels[list(strip.images)].astype(np.int64)

    def _shape(self, num_digits: int, text_only: bool) -> _Shape:
        position = 1
        spans: dict[str, tuple[ImageSpan, ...]] = {}
        if text_only:
            position += num_digits
        else:

            def size_of(name: str) -> ImageSize:
                digit = size_of_digit(self._models[name])
                return ImageSize(digit.height, digit.width * num_digits)

            for name in self._placeholders:
                spanned = dict(upstream_spans(self._spec, name, position, size_of))
                spans |= {each: (span,) for each, span in spanned.items()}
                position += spanned[name].rows
        return _Shape(num_digits, position + num_digits + 2, num_digits + 1, position, False, spans)

    def _drawn_shape(self, num_digits: int) -> _Shape:
        """Return the shape of a sample to draw; its second token is DRAW."""
        spans: dict[str, tuple[ImageSpan, ...]] = {}
        for maker in makers(self._spec):
            size = size_of_digit(self._models[maker])
            for place in range(2, 2 + num_digits):
                made = ImageSpan(place, size.height, size.width, reads=1)
                for name, span in spans_to_make(self._spec, maker, made):
                    spans[name] = (*spans.get(name, ()), span)
        return _Shape(num_digits, num_digits + 3, 0, 1, True, spans)

    def count_recognised(
        self, split: Split, index: int, images: Sequence[Media]
    ) -> tuple[int, int]:
        """Return how many images drawn for a sample show the right digit, and how many there are.

        An image counts as the digit of the nearest training image.
        """
        asked = self._digits(self.strip(split, index))
        seen = nearest_digits(np.stack([_drawn(image).mean(axis=0) for image in images]))
        return int((seen == asked).sum()), len(asked)


def _drawn(image: Media) -> npt.NDArray[np.float32]:
    """Return a drawn digit [channels, 8, 8], from pixels or codes; missing pixels are black."""
    if image.dtype != np.int64:
        return image.astype(np.float32)
    pixels = np.zeros(DIGIT_SIDE**2, np.float32)
    said = image.T.flatten()[: len(pixels)]
    pixels[: len(said)] = said
    scaled = (pixels - np.float32(PIXEL_MEAN)) / np.float32(PIXEL_DEVIATION)
    return scaled.reshape(1, DIGIT_SIDE, DIGIT_SIDE)
