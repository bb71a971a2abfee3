r"""Text as tokens, with the tokenizer of a Hugging Face folder.

Decides: which tokens of a text are learned, and which are markers; that `\<image>` is the text
`<image>`, tokenized by its letters. Until then one character replaces it: a noncharacter, which
Unicode reserves for such uses. A panic of the library becomes an error.
Relies on: the `tokenizers` library for ids.
Leaves: which parts of a text are learned to `sample_encoder`, recognising samples without markers
to `records`.
"""

import os
import re
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.decode_media import Marker
from mimo_launch.data.samples.template_program import Spans, TemplateRefused
from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.files import TOKENIZER, TokenizerError


@frozen
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
    """The tokenizer, tokens that start and end a document, if any, and the tokens of markers."""

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
        self._most, self.end = most, self.tokenizer.token_to_id(end)
        self.start = [
            token
            for token, is_special in zip(probe.ids, probe.special_tokens_mask, strict=True)
            if is_special and token != self.end
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
        ids, loss_mask = self.literals.spell(*self._ids(text, learn))
        if is_document:
            end = [] if self.end is None else [self.end]
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
        offsets: Spans = encoded.offsets
        loss_mask = np.zeros(len(offsets), dtype=np.bool_)
        for first, last, near in _near(offsets, learn):
            loss_mask[near] |= [
                start < last
                and end > first
                and (
                    (first <= start and end <= last)
                    or not (text[start:first] + text[last:end]).strip()
                )
                for start, end in offsets[near]
            ]
        return encoded.ids, loss_mask


def _near(offsets: Spans, learn: Spans) -> Iterator[tuple[int, int, slice]]:
    """Yield each learned span with the tokens among which are all that overlap it.

    Tokens lie in the order of the text, unless a normalizer changes it.
    """
    starts, ends = zip(*offsets, strict=True) if offsets else ((), ())
    # Sorting what is in order only compares neighbours.
    if [*starts] == sorted(starts) and [*ends] == sorted(ends):
        for first, last in learn:
            yield first, last, slice(bisect_right(ends, first), bisect_left(starts, last))
    else:
        yield from ((first, last, slice(None)) for first, last in learn)


def runs_of(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return start and end of each run of true values, [runs, 2]."""
    padded = np.zeros(len(mask) + 2, dtype=np.bool_)
    padded[1:-1] = mask
    return np.flatnonzero(padded[1:] != padded[:-1]).reshape(-1, 2)


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


_FIRST = 0xFDD0
_SIGNS = re.compile("[\ufdd0-\ufdef]")


class LiteralMarkers:
    """The markers of a tokenizer as text."""

    def __init__(self, tokenizer: Tokenizer, markers: Iterable[str]) -> None:
        self._signs: dict[str, str] = {}
        self._tokens: dict[int, list[int]] = {}
        for number, text in enumerate(dict.fromkeys(markers)):
            tokenizer.encode_special_tokens = True
            try:
                found = without_panic(partial(tokenizer.encode, text, add_special_tokens=False))
            except Exception:  # The library raises nothing narrower.
                continue  # The vocabulary lacks its letters.
            finally:
                tokenizer.encode_special_tokens = False
            sign = chr(_FIRST + number)
            if (token := add_token(tokenizer, sign)) is not None:
                self._signs[text], self._tokens[token] = sign, found.ids
        # Longest first, because one may be a prefix of another.
        texts = "|".join(map(re.escape, sorted(self._signs, key=len, reverse=True))) or "(?!)"
        self._bare, self._escaped = re.compile(f"({texts})"), re.compile(rf"(?<!\\)\\({texts})")

    def sign(self, value: Any, *, is_prose: bool) -> Any:
        """Return a JSON value with a sign in its texts in place of each marker that is text.

        With `is_prose`, all markers are text. Raises: BadSample if the value already has signs.
        """
        if isinstance(value, str):
            if value.isascii() and not is_prose and "\\" not in value:
                return value
            if _SIGNS.search(value):
                raise BadSample("its text has noncharacters of Unicode (U+FDD0 to U+FDEF)")
            pattern = self._bare if is_prose else self._escaped
            return pattern.sub(lambda found: self._signs[found[1]], value)
        if isinstance(value, Mapping):
            return {key: self.sign(each, is_prose=is_prose) for key, each in value.items()}
        if isinstance(value, list):
            return [self.sign(each, is_prose=is_prose) for each in value]
        return value

    def spell(
        self, ids: Sequence[int], loss_mask: npt.NDArray[np.bool_]
    ) -> tuple[list[int], npt.NDArray[np.bool_]]:
        """Return tokens and their loss mask, with each sign replaced by tokens of its letters."""
        if self._tokens.keys().isdisjoint(ids):
            return list(ids), loss_mask
        spelled = [self._tokens.get(token, [token]) for token in ids]
        return [token for each in spelled for token in each], loss_mask.repeat([*map(len, spelled)])


def add_token(tokenizer: Tokenizer, text: str) -> int | None:
    """Add a special token and return its id; None if another token has that id.

    The library uses the number of tokens as the new id, but a vocabulary may have gaps.
    """
    found: int | None = tokenizer.token_to_id(text)
    if found is None:
        size = tokenizer.get_vocab_size(with_added_tokens=False)
        new = max([size, *(each + 1 for each in tokenizer.get_added_tokens_decoder())])
        if tokenizer.id_to_token(new) is not None:
            return None
        found = new
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)])
    return found


T = TypeVar("T")


def without_panic(call: Callable[[], T]) -> T:
    """Return the result of a call of the tokenizers library.

    If the library panics, as when a regex backtracks too often, it writes a backtrace to stderr and
    raises an error that is not an `Exception`.

    Raises: ValueError in place of a panic, and whatever else the call raises.
    """
    try:
        with _panics_unwritten():
            return call()
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from None


@contextmanager
def _panics_unwritten() -> Iterator[None]:
    """Hold back stderr during a block: drop it if the block raises, else write it afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with open(os.memfd_create("stderr"), "r+b", buffering=0) as kept:
        stderr = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        if kept.tell():
            kept.seek(0)
            os.write(2, kept.read())
