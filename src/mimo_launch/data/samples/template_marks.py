"""Marks around the parts of a message, which a chat template copies into its text.

Decides: which parts are marked, and with which characters.
Leaves: finding answers by their marks to `answer_spans`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.chat_template import BLOCK, END_BLOCK
from mimo_launch.data.samples.messages import REASONING

# Piece n is marked by character n of these two planes. No text has them: the last two planes of
# Unicode are for private use.
_OPEN, _CLOSE = 0xF0000, 0x100000
MOST = 0xFFF0
PRIVATE = re.compile("[\U000f0000-\U0010ffff]")
Spans = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Marked:
    """A text without its marks; start and end of each piece; and blocks of answers."""

    text: str
    places: dict[int, tuple[int, int]]
    blocks: Spans


def start_mark(number: int) -> str:
    """Return the mark before a piece."""
    return chr(_OPEN + number)


def marked(message: dict[str, Any], number: Callable[[str], int | None]) -> dict[str, Any]:
    """Return a message with marks around its pieces.

    `number` is called for each piece, and returns None for a piece without marks.
    """
    found = dict(message)
    if _has_text(message.get("content")):
        found["content"] = _with_marks(message["content"], number("content"))
    reasoning = message.get(REASONING[0])
    if _has_text(reasoning):
        mark = number(REASONING[0])
        for key in REASONING:
            if message.get(key) == reasoning:
                found[key] = _with_marks(reasoning, mark)
    calls = message.get("tool_calls") or ()
    if calls:
        found["tool_calls"] = [
            _marked_call(call, number(f"tool_calls[{n}]" if len(calls) > 1 else "tool_calls"))
            for n, call in enumerate(calls)
        ]
    return found


def _marked_call(call: dict[str, Any], number: int | None) -> dict[str, Any]:
    """Return a tool call with marks around its name."""
    if isinstance(function := call.get("function"), dict):
        return {**call, "function": _marked_call(function, number)}
    return {**call, "name": _with_marks(call["name"], number)}


def _with_marks(value: Any, number: int | None) -> Any:
    """Return a JSON value with marks in its texts, inside blanks that a template may trim."""
    if number is None:
        return value
    if isinstance(value, dict):
        return {
            key: each if key == "type" else _with_marks(each, number) for key, each in value.items()
        }
    if isinstance(value, list):
        return [_with_marks(each, number) for each in value]
    if not isinstance(value, str) or not (body := value.strip()):
        return value
    indent, rest = value[: len(value) - len(value.lstrip())], value[len(value.rstrip()) :]
    return f"{indent}{start_mark(number)}{body}{chr(_CLOSE + number)}{rest}"


def _has_text(value: Any) -> bool:
    """Return whether a JSON value has a text that can have marks."""
    if isinstance(value, dict):
        return any(_has_text(each) for key, each in value.items() if key != "type")
    if isinstance(value, list):
        return any(map(_has_text, value))
    return isinstance(value, str) and bool(value.strip())


def read_marks(text: str) -> Marked:
    """Return a text without its marks, and their positions. Raises: BadSample."""
    pieces: list[str] = []
    places: dict[int, tuple[int, int]] = {}
    blocks: Spans = []
    length = at = 0
    begun: int | None = None
    for found in PRIVATE.finditer(text):
        pieces.append(text[at : found.start()])
        length, at = length + found.start() - at, found.end()
        mark = found[0]
        if mark == BLOCK and begun is None:
            begun = length
        elif mark == END_BLOCK and begun is not None:
            blocks.append((begun, length))
            begun = None
        elif mark in (BLOCK, END_BLOCK):
            raise BadSample("blocks of `{% generation %}` stand in each other")
        else:
            number = ord(mark) & 0xFFFF
            places[number] = (places.get(number, (length, 0))[0], length)
    return Marked("".join([*pieces, text[at:]]), places, blocks)
