"""The text of a sample: a caption, or a conversation with the places of images and clips.

Decides: which keys of its JSON are read, and which are only counted; that a list of texts is
several captions, each a text of its own.
Relies on: `template` in the spec; `messages` for a conversation.
Leaves: writing a conversation as tokens to `sample_encoder`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.decode_media import Medium
from mimo_launch.data.samples.messages import (
    MOST_PARTS,
    Message,
    MessagePart,
    read_messages,
    split,
    type_of,
)
from mimo_launch.data.samples.questions import turns_of
from mimo_launch.data.samples.record_keys import (
    OLD_TOOLS,
    ignored_keys,
    whole_sample_keys,
)
from mimo_launch.data.sources.record_shapes import conversation_of
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.spec import CaptionTemplate, UserData

TEXT_SUFFIXES = ("json", "txt")
_CAPTION_KEYS = ("text", "caption", "captions")
_CHAT_KEYS = ("messages", "conversations", "texts")
# Names and boxes of ms-swift, and their places in its texts.
_BOXES, _PLACES = "objects", ("<ref-object>", "<bbox>")


@frozen
class Record:
    """The text of a sample: a caption, or a conversation.

    Its template gets `tools` and `documents` as well as the messages. If `is_prose`, everything
    that looks like a marker is text; otherwise only after a backslash. `ignored` lists what is not
    read. `member` is the suffix of its text.
    """

    caption: tuple[MessagePart, ...] = ()
    messages: tuple[Message, ...] = ()
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    is_prose: bool = False
    ignored: tuple[str, ...] = ()
    member: str = "json"

    def media(self) -> tuple[Medium, ...]:
        """Return the medium of each marker in its texts, in order."""
        said = (part for message in self.messages for part in message.parts or ())
        parts = (*self.caption, *said)
        return tuple(part.kind for part in parts if part.kind != "text")


def read_records(
    data: UserData, member: Callable[[str], bytes | None], *, videos: bool = False
) -> tuple[Record, ...]:
    """Return the text of a sample, or each of its captions, in their order.

    `member` returns the bytes of a suffix, None if it is absent. With `videos`, an encoder reads
    videos, so texts have markers for them.

    Raises: BadSample.
    """
    template = data.template
    markers: dict[str, Medium] = {data.image_marker: "image", data.audio_marker: "audio"}
    if videos:
        markers[data.video_marker] = "video"
    if isinstance(template, CaptionTemplate):
        return tuple(_captions(template, member, markers))
    if template is None:
        raise TypeError("a record needs a template")
    record = _json_of(member)
    if is_prose := _is_prose(record):
        markers = {}
    has_messages = template.messages is not None or any(key in record for key in _CHAT_KEYS)
    if not has_messages and (found := turns_of(record)):
        turns, keys = found
    else:
        key, turns = _of_key(record, template.messages, _CHAT_KEYS)
        keys = (key,)
    if not isinstance(turns, list) or not turns:
        raise BadSample(f"`{keys[0]}` of its JSON is {type_of(turns)}, not a list of messages")
    messages, ignored = read_messages(turns, markers)
    _add_system(messages, record.get("system"), template.system)
    if template.answers == "last":
        last = max((n for n, each in enumerate(messages) if each.role == "assistant"), default=0)
        messages[:last] = (replace(each, in_loss=False) for each in messages[:last])
    if not any(m.role == "assistant" and m.says_something() for m in messages):
        roles = ", ".join(f"`{role[:40]}`" for role in dict.fromkeys(m.role for m in messages))
        raise BadSample(
            f"it has no answer of the assistant to learn from; the roles of its messages: {roles}"
        )
    if record.get(_BOXES) and any(place in json.dumps(turns) for place in _PLACES):
        raise BadSample(
            f"`{_BOXES}` of its JSON is not read: in place of {' and '.join(_PLACES)}, write the "
            "names and boxes in the words of the model"
        )
    tools, documents = (_objects(record, key) for key in ("tools", "documents"))
    if tools is None and (old := _objects(record, OLD_TOOLS)) is not None:
        tools = [{"type": "function", "function": each} for each in old]
    known = (*keys, "system", "tools", "documents", OLD_TOOLS, "markers")
    ignored += ignored_keys(record, *known, *whole_sample_keys(record))
    return (Record((), tuple(messages), tools, documents, is_prose, tuple(ignored)),)


def _add_system(messages: list[Message], own: Any, usual: str | None) -> None:
    """Put the system prompt of the record first or, if it has none, the one of the spec."""
    if own is not None and not isinstance(own, str):
        raise BadSample(f"`system` of its JSON is {type_of(own)}, not text")
    if messages[0].role == "system":
        if own:
            raise BadSample("its JSON has `system`, and a system message: leave one of them out")
        return
    text = own or usual
    if text is not None:
        messages.insert(0, Message("system", (MessagePart("text", text),)))


def _captions(
    template: CaptionTemplate,
    member: Callable[[str], bytes | None],
    markers: dict[str, Medium],
) -> Iterator[Record]:
    text: Any
    is_prose, ignored, suffix = False, list[str](), "json"
    if template.text is None and (plain := member("txt")) is not None:
        try:
            text = plain.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadSample(f"its .txt is not UTF-8: {error}") from error
        where, suffix = "its .txt", "txt"
    else:
        record = _json_of(member)
        key, text = _of_key(record, template.text, _CAPTION_KEYS)
        if key == "text" != template.text and isinstance(text, list):
            # Paragraphs, perhaps, or words: a key named by the spec or `captions` leaves no doubt.
            raise BadSample(
                "`text` of its JSON is a list: with `template: {kind: caption, text: text}` each "
                "epoch learns one of its texts"
            )
        is_prose = _is_prose(record)
        ignored += ignored_keys(record, key, "markers", *whole_sample_keys(record))
        where = f"`{key}` of its JSON"
    texts = text if isinstance(text, list) and text else [text]
    if len(texts) > MOST_PARTS:
        raise BadSample(f"{where} is a list of more than {MOST_PARTS:,} texts")
    for number, each in enumerate(texts, start=1):
        here = f"text {number} of {len(texts)} in {where}" if text is texts else where
        if not isinstance(each, str):
            raise BadSample(f"{here} is {type_of(each)}, not text")
        caption = split(each, {} if is_prose else markers)
        if not any(part.text.strip() for part in caption):
            raise BadSample(f"{here} is empty")
        yield Record(tuple(caption), is_prose=is_prose, ignored=tuple(ignored), member=suffix)


def _is_prose(record: dict[str, Any]) -> bool:
    """Return whether a sample says that its texts have no markers."""
    found = record.get("markers")
    if found is None or isinstance(found, bool):
        return found is False
    raise BadSample(f"`markers` of its JSON is {type_of(found)}, not true or false")


def _json_of(member: Callable[[str], bytes | None]) -> dict[str, Any]:
    raw = member("json")
    if raw is None:
        raise BadSample("it has no .json")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadSample(f"its .json cannot be read: {error}") from error
    found = conversation_of(found)
    if not isinstance(found, dict):
        raise BadSample(f"its .json is {type_of(found)}, not an object")
    return found


def _of_key(record: dict[str, Any], key: str | None, usual: tuple[str, ...]) -> tuple[str, Any]:
    """Return the key that holds the text, and its value."""
    for each in usual if key is None else (key,):
        if each in record:
            return each, record[each]
    wanted = " or ".join(f"`{each}`" for each in (usual if key is None else (key,)))
    raise BadSample(f"its .json has no key {wanted}")


def _objects(record: dict[str, Any], key: str) -> list[Any] | None:
    """Return another list of objects in the record; it may be JSON in a string, as in tables."""
    found = record.get(key)
    if isinstance(found, str):
        with suppress(ValueError, RecursionError):
            found = json.loads(found)
    if found is None or (isinstance(found, list) and all(isinstance(x, dict) for x in found)):
        return found
    raise BadSample(f"`{key}` of its JSON is {type_of(found)}, not a list of objects")
