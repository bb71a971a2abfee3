r"""Markers that are only text: after a backslash, or everywhere in a sample that says so.

Decides: that `\<image>` is the text `<image>`, tokenized by its letters. Until then one character
replaces it: a noncharacter, which Unicode reserves for such uses.
Relies on: the tokenizer, to which these characters are added as tokens.
Leaves: recognising samples without markers to `records`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.guards import without_panic
from mimo_launch.data.webdataset.media_text import add_token

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

    def signed(self, value: Any, *, is_prose: bool) -> Any:
        """Return a JSON value with a sign in its texts in place of each marker that is text.

        With `is_prose`, all markers are text. Raises: BadSample if the value already has signs.
        """
        if isinstance(value, str):
            if _SIGNS.search(value):
                raise BadSample("its text has noncharacters of Unicode (U+FDD0 to U+FDEF)")
            pattern = self._bare if is_prose else self._escaped
            return pattern.sub(lambda found: self._signs[found[1]], value)
        if isinstance(value, Mapping):
            return {key: self.signed(each, is_prose=is_prose) for key, each in value.items()}
        if isinstance(value, list):
            return [self.signed(each, is_prose=is_prose) for each in value]
        return value

    def spelled(
        self, ids: Sequence[int], loss_mask: npt.NDArray[np.bool_]
    ) -> tuple[list[int], npt.NDArray[np.bool_]]:
        """Return tokens and their loss mask, with each sign replaced by tokens of its letters."""
        if self._tokens.keys().isdisjoint(ids):
            return list(ids), loss_mask
        spelled = [self._tokens.get(token, [token]) for token in ids]
        return [token for each in spelled for token in each], loss_mask.repeat([*map(len, spelled)])
