"""The images, clips, videos and targets that a record names: files by their names, or their bytes.

Decides: the keys of a record and of parts of messages that name media, and the forms of a name;
which of several keys counts; that an object or a list in another form is a bad record.
Leaves: reading files to `media_folders`, places in the text to `record_shapes`.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mimo_launch.data.sources.media_suffixes import (
    AUDIO_SUFFIXES,
    CODES_SUFFIX,
    FRAMES_SUFFIX,
    IMAGE_FORMATS,
    VIDEO_SUFFIXES,
)
from mimo_launch.diag.frozen import frozen

# Keys of a record that name media, and the keys of a part that do.
KEYS = {
    "image": ("images", "image"),
    "video": ("videos", "video"),
    "audio": ("audios", "audio"),
    "target": ("targets", "target"),
}
# Keys that count if none of the above does: beside it, they say where the file was once.
_PATHS = {"image": "image_path", "video": "video_path", "audio": "audio_path"}
# The name of an image, a video or a clip, as its suffix says, if no other key names any.
_ANY = "file_name"
PARTS = {
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
# The first bytes of JPEG, PNG, GIF, and WebP or WAV files in base64: no such text is a path.
_BASE64 = re.compile(r"(?:/9j/|iVBORw0KGgo|R0lGOD|UklGR)[A-Za-z0-9+/\s]{40,}={0,2}\s*")
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_WRITE = "write a path, or an object with `path`, `url`, `data` or `bytes`"


class BadRecord(ValueError):
    """A record cannot be used; the message says why."""


@frozen
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
        text = self.encoded
        if limit is not None:
            # Four characters are three bytes, beside those that break lines.
            text = "".join(text[: 4 * limit].split())[: -(-limit // 3) * 4]
        try:
            return base64.b64decode(text)[:limit]
        except (binascii.Error, ValueError) as error:
            raise BadRecord(f"its {self.kind} is no base64: {error}") from error


def media_of_keys(record: dict[str, Any]) -> dict[str, list[Medium]]:
    """Take the media of each kind out of a record; names beside them stay. Raises: BadRecord."""
    found = {kind: list(_of_keys(record, kind)) for kind in KEYS}
    if not any(found[kind] for kind in _PATHS) and isinstance(name := record.get(_ANY), str):
        for medium in _media("image", record.pop(_ANY)):
            ends = name.lower().rpartition(".")[2]
            kind = next((k for k in ("video", "audio") if ends in _SUFFIXES[k]), "image")
            found[kind].append(Medium(kind, medium.said))
    return found


def _of_keys(record: dict[str, Any], kind: str) -> Iterator[Medium]:
    first = None
    for key in KEYS[kind]:
        if key in record and (media := list(_media(kind, record.pop(key)))):
            if first is not None:
                keys = f"`{first}` and by `{key}`"
                raise BadRecord(f"its {kind}s are named by {keys}: name them once")
            first = key
            yield from media
    if first is None and (path := _PATHS.get(kind)) in record:
        yield from _media(kind, record.pop(path))


def medium_of_part(kind: str, part: Mapping[str, Any]) -> Medium | None:
    """Return the medium that a part of a message names, or None. Raises: BadRecord."""
    media = list(_of_struct(kind, part))
    if len(media) > 1:
        raise BadRecord(_frames(kind))
    return media[0] if media else None


def names_of_parts(kind: str) -> tuple[str, ...]:
    """Return the keys of a part that name a medium of a kind."""
    return (*(part for part, of in PARTS.items() if of == kind), *_NAMES)


def _media(kind: str, value: Any) -> Iterator[Medium]:
    """Yield the media that a value names. Raises: BadRecord."""
    if value is None or value == "":
        return
    if isinstance(value, str):
        yield _named(kind, value)
    elif isinstance(value, bytes):
        yield Medium(kind, data=value)
    elif isinstance(value, dict):
        media = list(_of_struct(kind, value))
        keys = [str(key)[:40] for key, said in value.items() if said not in _EMPTY][:6]
        if keys and not media:
            named = ", ".join(f"`{key}`" for key in keys)
            raise BadRecord(
                f"its {kind} is an object with the key{'s' * (len(keys) > 1)} {named}: {_WRITE}"
            )
        yield from media
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, list):
                raise BadRecord(_frames(kind))
            yield from _media(kind, each)
    else:
        raise BadRecord(f"its {kind} is {type(value).__name__}, not a path or bytes")


def _frames(kind: str) -> str:
    return f"its {kind} is a list of files: write one file, for frames a zip"


def _named(kind: str, name: str) -> Medium:
    if _BASE64.fullmatch(name):
        return Medium(kind, encoded=name)
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
    for key in ("data", "base64", "bytes"):
        if isinstance(text := value.get(key), str) and text:
            yield (
                _named(kind, text) if text.startswith("data:") else Medium(kind, said, encoded=text)
            )
            return
    for key in ("path", "url", *(part for part, of in PARTS.items() if of == kind)):
        if value.get(key):
            yield from _media(kind, value[key])
            return
