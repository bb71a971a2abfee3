"""Records as people write them: which files and bytes they name, and their text without these.

Decides: the keys and parts of messages that name images, clips, videos and targets; that a record
becomes members as in a tar shard: a JSON text, in which a place of a medium is a marker or a part
without its file, and media in the order of these places; that pairs of `user` and `assistant`
show their images first (The Cauldron, FineVision).
Relies on: numpy for columns.
Leaves: files to `media_folders`, the meaning of the text to `samples.records`.
"""

import base64
import binascii
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mimo_launch.data.sources.media_suffixes import (
    AUDIO_SUFFIXES,
    CODES_SUFFIX,
    COLUMN,
    FRAMES_SUFFIX,
    IMAGE_FORMATS,
    TARGET,
    VIDEO_SUFFIXES,
)

# Keys of a record that name media, and the keys of a part that do.
_KEYS = {
    "image": ("images", "image", "image_path", "file_name"),
    "video": ("videos", "video", "video_path"),
    "audio": ("audios", "audio", "audio_path"),
    "target": ("targets", "target"),
}
_PARTS = {
    **dict.fromkeys(("image", "image_url"), "image"),
    **dict.fromkeys(("video", "video_url"), "video"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
}
_NAMES = ("url", "path", "data", "base64", "bytes")
# The suffixes of each medium; the first is that of media without one.
_SUFFIXES = {
    "image": ("jpg", *IMAGE_FORMATS),
    "video": ("mp4", *sorted(VIDEO_SUFFIXES), FRAMES_SUFFIX),
    "audio": ("wav", *sorted(AUDIO_SUFFIXES)),
    "target": ("png", *IMAGE_FORMATS, *sorted(AUDIO_SUFFIXES), CODES_SUFFIX),
}
PAIRS = "texts"
# The key of columns for a user's loss.
_COLUMNS = "columns"


class BadRecord(ValueError):
    """A record cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Medium:
    """An image, clip, video or target of a record: a file by its name, or its bytes.

    `encoded` are the bytes in base64. `said` is a name or type from which the suffix follows.
    """

    kind: str
    said: str = ""
    data: bytes | None = None
    encoded: str | None = None

    @property
    def suffix(self) -> str:
        """The suffix of its format, as far as its name says it."""
        known, name = _SUFFIXES[self.kind], self.said.lower()
        ends = (each for each in known if name.endswith(("." + each, "/" + each)))
        return max(ends, key=len, default=known[0])

    def held(self, limit: int | None = None) -> bytes | None:
        """Return its bytes, or the first `limit`, if the record holds them. Raises: BadRecord."""
        if self.encoded is None:
            return self.data if limit is None or self.data is None else self.data[:limit]
        # Four characters are three bytes.
        text = self.encoded if limit is None else self.encoded[: -(-limit // 3) * 4]
        try:
            return base64.b64decode(text)[:limit]
        except (binascii.Error, ValueError) as error:
            raise BadRecord(f"its {self.kind} is no base64: {error}") from error


@dataclass(frozen=True, slots=True)
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
    """Return a record as members. Raises: BadRecord."""
    if not isinstance(record, dict):
        raise BadRecord(f"it is {type(record).__name__}, not an object with keys")
    rest = dict(record)
    waiting = {kind: list(_of_keys(rest, kind)) for kind in _KEYS}
    found = {kind: list[Medium]() for kind in _KEYS}
    for key, value in rest.items():
        turns = _as_list(value)
        if isinstance(turns, list) and any(map(_has_parts, turns)):
            turns = [_shaped_turn(each, waiting, found) for each in turns]
        rest[key] = turns
    if isinstance(pairs := rest.get(PAIRS), list) and any(map(_is_pair, pairs)):
        rest[PAIRS] = _as_messages(pairs, waiting)
        rest["markers"] = False
    for kind, left in waiting.items():
        if left and found[kind]:
            raise BadRecord(
                f"its {kind}s are named in its messages and by `{_KEYS[kind][0]}`: name them once"
            )
        found[kind] += left
    named = {
        f"{TARGET * (kind == 'target')}{number}.{each.suffix}": each
        for kind, media in found.items()
        for number, each in enumerate(media)
    }
    named |= _columns(rest)
    text = json.dumps(rest, ensure_ascii=False, default=_shown)
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


def _of_keys(record: dict[str, Any], kind: str) -> Iterator[Medium]:
    """Take the media of a kind out of a record. Raises: BadRecord."""
    for key in _KEYS[kind]:
        if key in record:
            yield from _media(kind, record.pop(key))


def _media(kind: str, value: Any) -> Iterator[Medium]:
    """Yield the media that a value names. Raises: BadRecord."""
    if value is None or value == "":
        return
    if isinstance(value, str):
        yield _named(kind, value)
    elif isinstance(value, bytes):
        yield Medium(kind, data=value)
    elif isinstance(value, dict):
        yield from _of_struct(kind, value)
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, list):
                raise BadRecord(f"its {kind} is a list of files: write one file, for frames a zip")
            yield from _media(kind, each)
    else:
        raise BadRecord(f"its {kind} is {type(value).__name__}, not a path or bytes")


def _named(kind: str, name: str) -> Medium:
    if not name.startswith("data:"):
        return Medium(kind, name.removeprefix("file://"))
    head, comma, text = name.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadRecord(f"its {kind} is `{head[:40]}`, but `data:TYPE;base64,...` is read")
    said = head.removeprefix("data:").removesuffix(";base64")
    return Medium(kind, said, encoded=text)


def _of_struct(kind: str, value: Mapping[str, Any]) -> Iterator[Medium]:
    """Yield the medium of an object such as `{bytes, path}`, `{url}` or `{data, format}`."""
    said = str(value.get("path") or value.get("format") or "")
    said = said if "." in said else f"/{said}"
    if isinstance(data := value.get("bytes"), bytes):
        yield Medium(kind, said, data=data)
        return
    for key in ("data", "base64"):
        if isinstance(text := value.get(key), str) and text:
            yield (
                _named(kind, text) if text.startswith("data:") else Medium(kind, said, encoded=text)
            )
            return
    for key in ("path", "url", *(part for part, of in _PARTS.items() if of == kind)):
        if value.get(key):
            yield from _media(kind, value[key])
            return


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
    kind = _PARTS.get(part.get("type", "")) if isinstance(part, dict) else None
    if kind is None:
        return part
    names = (*_NAMES, *(each for each, of in _PARTS.items() if of == kind))
    media = list(_of_struct(kind, part))
    if media:
        found[kind] += media
    elif waiting[kind]:
        found[kind].append(waiting[kind].pop(0))
    return {name: value for name, value in part.items() if name not in names}


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
