"""Records as people write them: the places of their images, clips, videos and targets in the text.

Decides: that a record becomes members as in a tar shard: a JSON text, in which a place of a medium
is a marker or a part without its file, and media in the order of these places; that pairs of `user`
and `assistant` show their images first (The Cauldron, FineVision).
Relies on: `named_media` for the media that a record names; numpy for columns.
Leaves: the meaning of the text to `samples.records`.
"""

import io
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mimo_launch.data.sources.media_suffixes import COLUMN, TARGET
from mimo_launch.data.sources.named_media import (
    KEYS,
    PARTS,
    BadRecord,
    Medium,
    media_of_keys,
    medium_of_part,
    names_of_parts,
)
from mimo_launch.diag.frozen import frozen

PAIRS = "texts"
# Keys of messages, which tables may hold as JSON text.
_IN_JSON = ("messages", "conversations", "prompt", "completion")
# Records of a question and its answer: the keys of the question, one line each, and that of the
# answer.
FORMS = (
    (("query",), "response"),
    (("instruction", "input"), "output"),
    (("prompt",), "completion"),
)
_ANSWERS = frozenset(answer for _, answer in FORMS)
# The key of columns for a user's loss.
_COLUMNS = "columns"


@frozen
class ShapedRecord:
    """A record as members: its text as JSON, and its media by suffix, in order."""

    text: bytes
    media: dict[str, Medium]

    @property
    def size(self) -> int:
        """The bytes that it holds."""
        held = (len(each.data or each.encoded or "") for each in self.media.values())
        return len(self.text) + sum(held)


def shaped(record: Any) -> ShapedRecord:
    """Return a record as members; a list of turns is a conversation. Raises: BadRecord."""
    record = conversation_of(record)
    if not isinstance(record, dict):
        raise BadRecord(f"it is {type(record).__name__}, not an object with keys")
    rest = dict(record)
    waiting = media_of_keys(rest)
    found = {kind: list[Medium]() for kind in KEYS}
    # In the order of the text, whatever the order of the keys.
    for key, value in sorted(rest.items(), key=lambda each: each[0] in _ANSWERS):
        turns = _as_list(_parsed(value) if key in _IN_JSON else value)
        if isinstance(turns, list) and any(map(_has_parts, turns)):
            turns = [_shaped_turn(each, waiting, found) for each in turns]
        rest[key] = turns
    if isinstance(pairs := rest.get(PAIRS), list) and any(map(_is_pair, pairs)):
        rest[PAIRS] = _as_messages(pairs, waiting)
        rest["markers"] = False
    for kind, left in waiting.items():
        if left and found[kind]:
            raise BadRecord(
                f"its {kind}s are named in its messages and by `{KEYS[kind][0]}`: name them once"
            )
        found[kind] += left
    named = {
        f"{TARGET * (kind == 'target')}{number}.{each.suffix}": each
        for kind, media in found.items()
        for number, each in enumerate(media)
    }
    named |= _columns(rest)
    try:
        text = json.dumps(rest, ensure_ascii=False, default=_shown)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecord(f"it cannot be written as JSON: {error}") from error
    return ShapedRecord(text.encode("utf-8", "surrogatepass"), named)


def _columns(record: dict[str, Any]) -> dict[str, Medium]:
    """Take columns of numbers out of a record, by suffix."""
    found: dict[str, Medium] = {}
    if isinstance(given := record.get(_COLUMNS), dict):
        # Imported here: a spec is checked without numpy.
        import numpy as np

        for name, value in given.items():
            # A ragged list makes no array.
            with suppress(ValueError, TypeError, OverflowError):
                array = np.asarray(value)
                if array.dtype.kind in "biuf" and re.fullmatch(r"[A-Za-z]\w*", str(name)):
                    file = io.BytesIO()
                    np.save(file, array, allow_pickle=False)
                    found[f"{COLUMN}{name}.npy"] = Medium("column", data=file.getvalue())
        rest = {k: v for k, v in given.items() if f"{COLUMN}{k}.npy" not in found}
        record[_COLUMNS] = rest
        if not rest:
            del record[_COLUMNS]
    return found


def _shown(value: object) -> str:
    """Return a value that JSON has no form for, which no text is made from."""
    return type(value).__name__ if isinstance(value, bytes) else str(value)


def conversation_of(found: Any) -> Any:
    """Return a list of turns as the record that has them; any other value as it is."""
    if isinstance(found, list) and found and all(map(_is_turn, found)):
        return {"messages": found}
    return found


def _is_turn(found: Any) -> bool:
    return isinstance(found, dict) and not {"role", "from"}.isdisjoint(found)


def _parsed(value: Any) -> Any:
    """Return a list of turns that is written as JSON text; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            found = json.loads(value)
            return found if any(map(_is_turn, found)) else value
    return value


def _as_list(value: Any) -> Any:
    """Return messages as a list, if they are lists of roles and texts, as old `datasets` do it."""
    if not isinstance(value, dict) or {"role", "from", "user"}.isdisjoint(value):
        return value
    columns = list(value.values())
    if not all(isinstance(each, list) for each in columns) or len({*map(len, columns)}) != 1:
        return value
    return [dict(zip(value, turn, strict=True)) for turn in zip(*columns, strict=True)]


def _has_parts(turn: Any) -> bool:
    """Return whether a message has a list of parts as content."""
    return isinstance(turn, dict) and any(
        isinstance(turn.get(key), list) for key in ("content", "value")
    )


def _shaped_turn(
    turn: Any, waiting: dict[str, list[Medium]], found: dict[str, list[Medium]]
) -> Any:
    """Return a message without the files of its parts, which are added to `found`."""
    if not _has_parts(turn):
        return turn
    key = "content" if isinstance(turn.get("content"), list) else "value"
    return {**turn, key: [_shaped_part(each, waiting, found) for each in turn[key]]}


def _shaped_part(
    part: Any, waiting: dict[str, list[Medium]], found: dict[str, list[Medium]]
) -> Any:
    said = part.get("type") if isinstance(part, dict) else None
    kind = PARTS.get(said) if isinstance(said, str) else None
    if kind is None:
        return part
    names = names_of_parts(kind)
    rest = {name: value for name, value in part.items() if name not in names}
    if (medium := medium_of_part(kind, part)) is not None:
        found[kind].append(medium)
    elif waiting[kind]:
        found[kind].append(waiting[kind].pop(0))
    elif any(value not in (None, "") for name, value in rest.items() if name != "type"):
        known = ", ".join(f"`{name}`" for name in names)
        raise BadRecord(f"a part of type `{part['type']}` has no file under {known}")
    return rest


def _is_pair(turn: Any) -> bool:
    return isinstance(turn, dict) and "user" in turn and "assistant" in turn


def _as_messages(pairs: list[Any], waiting: Mapping[str, list[Medium]]) -> list[Any]:
    """Return messages for pairs of a question and an answer, with all media in the first."""
    shown = [{"type": kind} for kind in ("image", "video", "audio") for _ in waiting[kind]]
    messages: list[Any] = []
    for pair in pairs:
        if not _is_pair(pair):
            raise BadRecord(f"`{PAIRS}` has an entry without `user` and `assistant`")
        asked = [*shown, {"type": "text", "text": pair["user"]}] if shown else pair["user"]
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": pair["assistant"]})
        shown = []
    return messages
