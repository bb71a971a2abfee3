"""Text as tokens, with the tokenizer of a Hugging Face folder.

Decides: which tokens of a text are learned, and which are markers.
Relies on: the `tokenizers` library for ids.
Leaves: which parts of a text are learned to `sample_encoder`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.chat_template import TemplateRefused
from mimo_launch.data.webdataset.decode_media import Marker
from mimo_launch.data.webdataset.guards import without_panic
from mimo_launch.data.webdataset.literal_markers import LiteralMarkers
from mimo_launch.data.webdataset.template_marks import Spans
from mimo_launch.processors.files import TOKENIZER, TokenizerError


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """The text tokens of a sample [n], which of them are learned, and the markers between them.

    `markers` are images, clips and targets in order, each with the number of text tokens before it.
    `ignored` are keys of its messages that the chat template does not read.
    """

    tokens: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.bool_]
    markers: tuple[tuple[int, Marker], ...]
    ignored: tuple[str, ...] = ()


class TextTokens:
    """The tokenizer, the token that starts a document, if any, and the tokens of markers."""

    def __init__(self, folder: Path, end: str, most: int) -> None:
        """Load the tokenizer.

        Args:
            folder: The folder with `tokenizer.json`.
            end: The token that ends a document.
            most: Maximum number of characters of a text.

        Raises:
            TokenizerError: The folder has no usable tokenizer.
        """
        file = folder / TOKENIZER
        try:
            self.tokenizer = without_panic(partial(Tokenizer.from_file, str(file)))
            probe = without_panic(partial(self.tokenizer.encode, ""))
        except Exception as error:  # The library raises nothing narrower.
            raise TokenizerError(f"{file} cannot be read: {error}") from error
        # These settings belong to the program that saved the tokenizer, not to the model.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._most, self._end = most, self.tokenizer.token_to_id(end)
        self.start = [
            token
            for token, is_special in zip(probe.ids, probe.special_tokens_mask, strict=True)
            if is_special and token != self._end
        ][:1]
        self._markers: dict[int, Marker] = {}
        self.literals = LiteralMarkers(self.tokenizer, ())

    def expect(self, markers: Mapping[Marker, str], literals: Iterable[str]) -> None:
        """Treat some tokens as markers, and the signs of `literals` as text.

        Raises: TemplateRefused if two markers are the same token.
        """
        ids = {marker: self.tokenizer.token_to_id(text) for marker, text in markers.items()}
        self._markers = {token: marker for marker, token in ids.items() if token is not None}
        if len(self._markers) < len(markers):
            raise TemplateRefused("two of images, clips, videos and targets have the same marker")
        self.literals = LiteralMarkers(self.tokenizer, literals)

    def encode(self, text: str, learn: Spans, *, is_document: bool = False) -> EncodedSample:
        """Return a text as tokens; a document also gets its start and end tokens.

        Raises: BadSample if the text is too long, or the tokenizer refuses it.
        """
        ids, loss_mask = self.literals.spelled(*self._ids(text, learn))
        if is_document:
            end = [] if self._end is None else [self._end]
            loss_mask = np.pad(loss_mask, (len(self.start), len(end)))
            loss_mask[len(loss_mask) - len(end) :] = True
            ids = [*self.start, *ids, *end]
        places = [place for place, token in enumerate(ids) if token in self._markers]
        is_text = np.ones(len(ids), dtype=np.bool_)
        is_text[places] = False
        markers = tuple((place - i, self._markers[ids[place]]) for i, place in enumerate(places))
        return EncodedSample(np.array(ids, dtype=np.int64)[is_text], loss_mask[is_text], markers)

    def _ids(self, text: str, learn: Spans) -> tuple[list[int], npt.NDArray[np.bool_]]:
        """Return the tokens of a text, and which of them are learned.

        A token at the edge of a learned span is learned only if its part outside is blank.
        """
        if len(text) > self._most:
            raise BadSample(
                f"its text has {len(text):,} characters, but `data.max_characters` allows "
                f"{self._most:,}"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadSample(f"its text has half a surrogate pair: {error.reason}") from error
        try:
            encoded = without_panic(partial(self.tokenizer.encode, text, add_special_tokens=False))
        except Exception as error:  # The library raises nothing narrower.
            raise BadSample(f"the tokenizer refuses its text: {error}") from error
        ids: list[int] = encoded.ids
        offsets = np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2)
        loss_mask = np.zeros(len(ids), dtype=np.bool_)
        for first, last in learn:
            inside = (offsets[:, 0] < last) & (offsets[:, 1] > first)
            beyond = inside & ((offsets[:, 0] < first) | (offsets[:, 1] > last))
            for token in np.flatnonzero(beyond):
                start, end = offsets[token]
                inside[token] = not (text[start:first] + text[last:end]).strip()
            loss_mask |= inside
        return ids, loss_mask


def loss_mask_among(
    loss_mask: npt.NDArray[np.bool_], is_row: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which tokens of a sample are learned, bool [tokens], given the text's loss mask.

    The first token is not learned: nothing predicts it.
    """
    found = np.zeros(len(is_row), dtype=np.bool_)
    found[~is_row] = loss_mask
    found[:1] = False
    return found
