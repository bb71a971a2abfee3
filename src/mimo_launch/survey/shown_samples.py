"""Samples as the model gets them: pieces of text, each learned or not, and rows of images.

Decides: that the pieces of a text, joined, are the text with every space; the text of tokens in
data sets without a tokenizer.
Relies on: the data set for texts and images.
Leaves: drawing to `cli`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import Dataset, KeyValues, Media
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import ASK, BOS, EOS, FIRST_DIGIT, FIRST_WORD, IGNORE_LABEL, PAD
from mimo_launch.layout.step_data import SampleData
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import DigitsData, Spec, UserData
from mimo_launch.train.loader import BAD

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# The tokens of the digits task, except placeholders.
_DIGIT_TOKENS = {
    PAD: "<pad>",
    BOS: "<bos>",
    EOS: "<eos>",
    ASK: "<ask>",
    **{FIRST_WORD + number: word for number, word in enumerate(_NUMBERS)},
    **{FIRST_DIGIT + number: str(number) for number in range(len(_NUMBERS))},
}


@dataclass(frozen=True, slots=True)
class ShownPiece:
    """A run of tokens: text, or the rows of an image or clip, the `item` of an encoder, from 0 on.

    Text that counts in the loss has the kind `learnt`. Rows that language does not read directly,
    of an encoder before a connector or of a generator, are not tokens of the text.
    """

    kind: Literal["text", "learnt", "rows"]
    text: str
    tokens: int
    encoder: str = ""
    item: int = 0


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """One record of a sample, with its images by encoder; `bad` says why it cannot be read.

    `tokens` are those that the model gets, `cut` those left out at its end. `source` is the name of
    its source, if the data have several. `between` joins its pieces. `keys` are those of users'
    data.
    """

    id: int
    name: str
    tokens: int
    pieces: list[ShownPiece] = field(default_factory=list)
    images: dict[str, Sequence[Media]] = field(default_factory=dict)
    bad: str | None = None
    cut: int = 0
    source: str = ""
    between: str = ""
    keys: KeyValues | None = None

    @property
    def num_labels(self) -> int:
        """Number of its tokens that count in the loss."""
        return sum(piece.tokens for piece in self.pieces if piece.kind == "learnt")

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of each module that has any."""
        found = Counter[str]()
        for piece in self.pieces:
            if piece.kind == "rows":
                found[piece.encoder] += piece.tokens
        return dict(found)


@dataclass(frozen=True, slots=True)
class Shown:
    """One sample of a step: its records and the padding after them."""

    records: list[ShownRecord]
    padding: int


def show_samples(
    spec: Spec, dataset: Dataset, samples: Iterable[SampleData], most: int
) -> list[Shown]:
    """Return the first `most` samples with decoded records; each record is shown only once."""
    shown, number = _Records(spec, dataset), dataset.num_samples("train")
    found: list[Shown] = []
    seen: set[int] = set()
    for sample in islice(samples, most):
        # Of a list of captions, each has an id of its own.
        ids = {record.id % number for record in sample.records}
        if seen & ids:
            break
        seen |= ids
        records = [shown.of(record) for record in sample.records]
        found.append(Shown(records, spec.batch.seq - sample.num_tokens))
    return found


@dataclass(frozen=True)
class _Records:
    """Decodes the records of a data set."""

    spec: Spec
    dataset: Dataset

    def of(self, sample: SampleData) -> ShownRecord:
        """Return a record in pieces, in the order in which the model gets them."""
        spec, name = self.spec, self.dataset.name("train", sample.id)
        try:
            tokens, labels = self.dataset.text("train", sample.id)
            images = {
                module: self.dataset.images("train", sample.id, module)
                for module in (*spec.encoders, *spec.generators)
                if kind_of(spec.modules[module].model).input is not None
            }
            keys = self.dataset.keys("train", sample.id)
        except BAD as error:
            return ShownRecord(
                sample.id, name, sample.num_tokens, bad=str(error), source=sample.source
            )
        # The label of a token is at the position before it.
        loss_mask = np.append(False, labels[: sample.num_tokens - 1] != IGNORE_LABEL)
        # Each module comes after the modules that it reads.
        rows = [
            (span, module, item)
            for module in (*spec.encoders, *spec.generators)
            for item, span in enumerate(sample.spans.get(module, ()))
        ]
        pieces: list[ShownPiece] = []
        earlier: list[int] = []
        at, in_text = 0, spec.sources_of(LANGUAGE)
        for span, module, item in sorted(rows, key=lambda row: row[0].position):
            # A generator makes its image from tokens, so the image follows them.
            until = span.position if span.reads is None else span.position + span.reads
            pieces += self.texts(tokens, loss_mask, range(at, until), earlier)
            text = f"{module} {item + 1}: {span.height} x {span.width} = {span.rows} rows"
            if span.later is not None:
                text += f", {span.later} later"
            pieces.append(ShownPiece("rows", text, span.rows, module, item))
            at = max(at, span.end if module in in_text else until)
        pieces += self.texts(tokens, loss_mask, range(at, sample.num_tokens), earlier)
        return ShownRecord(
            *(sample.id, name, sample.num_tokens, pieces, images),
            cut=self.dataset.num_cut("train", sample.id),
            source=sample.source,
            between="" if isinstance(spec.data, UserData) else " ",
            keys=keys,
        )

    def texts(
        self,
        tokens: npt.NDArray[np.int64],
        loss_mask: npt.NDArray[np.bool_],
        here: range,
        earlier: list[int],
    ) -> Iterator[ShownPiece]:
        """Yield runs of tokens that are all learned or all not learned.

        `earlier` has the tokens of text before them; the tokens of each run are appended to it.
        """
        cuts = [i for i in here[1:] if loss_mask[i] != loss_mask[i - 1]]
        for first, last in zip([here.start, *cuts], [*cuts, here.stop], strict=True):
            if first < last:
                kind: Literal["text", "learnt"] = "learnt" if loss_mask[first] else "text"
                run = tokens[first:last].tolist()
                yield ShownPiece(kind, self.words(earlier, run), last - first)
                earlier += run

    @cached_property
    def words(self) -> Callable[[Sequence[int], Sequence[int]], str]:
        """The function that turns tokens into text, given the tokens of text before them."""
        data = self.spec.data
        if isinstance(data, UserData):
            from pathlib import Path

            from tokenizers import Tokenizer

            from mimo_launch.processors.files import TOKENIZER

            tokenizer = Tokenizer.from_file(str(Path(data.tokenizer) / TOKENIZER))
            decode = partial(tokenizer.decode, skip_special_tokens=False)

            # Decoded alone, the first word may lose the space before it.
            return lambda earlier, ids: str(decode([*earlier, *ids]))[len(decode(list(earlier))) :]
        if isinstance(data, DigitsData):
            return lambda _, ids: " ".join(_DIGIT_TOKENS.get(each, f"<{each}>") for each in ids)
        return lambda _, ids: " ".join(map(str, ids))
