"""The text of a sample: a caption, or a conversation with the places of images and clips.

Decides: which forms of JSON are understood.
Relies on: `template` of the spec.
Leaves: writing a conversation as tokens to `sample_encoder`.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.decode_media import Medium
from mimo_launch.spec.spec import CaptionTemplate, WebdatasetData

TEXT_SUFFIXES = ("json", "txt")
_CAPTION_KEYS, _CHAT_KEYS = ("text", "caption"), ("messages", "conversations")
# The names of speakers in files of LLaVA and ShareGPT.
_ROLES = {"human": "user", "gpt": "assistant", "model": "assistant"}
# More than in any document: a template takes seconds for them.
MOST_PARTS = 1 << 16
# Keys of an assistant's reasoning; current templates use the first.
REASONING = ("reasoning_content", "thinking", "reasoning")
_PART_MEDIA: dict[str, Medium] = {
    "image": "image",
    "image_url": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
}


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A piece of a message: some text, or the next image, clip or video of the sample."""

    kind: Literal["text"] | Medium
    text: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `rest` are keys that only the chat template knows, such as tool calls.

    `parts` are None if it has no content, or if the content is a JSON value in `rest`; `in_parts`
    says whether the content was a list.
    """

    role: str
    parts: tuple[MessagePart, ...] | None
    rest: Mapping[str, Any] = field(default_factory=dict)
    in_parts: bool = False

    def says_something(self) -> bool:
        """Return whether it has text, tool calls or reasoning."""
        texts = [part.text for part in self.parts or ()]
        reasoning = [self.rest[key] for key in REASONING if isinstance(self.rest.get(key), str)]
        return any(text.strip() for text in texts + reasoning) or bool(self.rest.get("tool_calls"))


@dataclass(frozen=True, slots=True)
class Record:
    """The text of a sample: a caption, or a conversation.

    Its template gets `tools` and `documents` beside the messages. `is_prose`: what looks like a
    marker in its texts is text; elsewhere only what stands after a backslash.
    """

    caption: tuple[MessagePart, ...] = ()
    messages: tuple[Message, ...] = ()
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    is_prose: bool = False

    def media(self) -> tuple[Medium, ...]:
        """Return what the markers of its texts stand for, in order."""
        said = (part for message in self.messages for part in message.parts or ())
        parts = (*self.caption, *said)
        return tuple(part.kind for part in parts if part.kind != "text")


def read_record(
    data: WebdatasetData, member: Callable[[str], bytes | None], *, videos: bool = False
) -> Record:
    """Return the text of a sample; `member` returns the bytes of a suffix, None if it has none.

    `videos`: an encoder reads videos, so texts have markers for them.

    Raises: BadSample.
    """
    template = data.template
    markers: dict[str, Medium] = {data.image_marker: "image", data.audio_marker: "audio"}
    if videos:
        markers[data.video_marker] = "video"
    if isinstance(template, CaptionTemplate):
        text, is_prose = _caption(template, member)
        return Record(caption=tuple(_split(text, {} if is_prose else markers)), is_prose=is_prose)
    record = _json_of(member)
    if is_prose := _is_prose(record):
        markers = {}
    key, turns = _of_key(record, template.messages, _CHAT_KEYS)
    if not isinstance(turns, list) or not turns:
        raise BadSample(f"`{key}` of its JSON is {_type_of(turns)}, not a list of messages")
    messages = [_message(turn, markers) for turn in turns]
    if sum(len(each.parts or ()) for each in messages) > MOST_PARTS:
        raise BadSample(f"its messages have more than {MOST_PARTS:,} parts")
    if template.system is not None and messages[0].role != "system":
        messages.insert(0, Message("system", (MessagePart("text", template.system),)))
    if not any(m.role == "assistant" and m.says_something() for m in messages):
        raise BadSample("it has no answer of the assistant to learn from")
    tools, documents = (_objects(record, key) for key in ("tools", "documents"))
    return Record((), tuple(messages), tools, documents, is_prose)


def _caption(template: CaptionTemplate, member: Callable[[str], bytes | None]) -> tuple[str, bool]:
    """Return the text of a caption, and whether its markers are text."""
    text: Any
    is_prose = False
    if template.text is None and (plain := member("txt")) is not None:
        try:
            text = plain.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadSample(f"its .txt is not UTF-8: {error}") from error
        where = "its .txt"
    else:
        record = _json_of(member)
        key, text = _of_key(record, template.text, _CAPTION_KEYS)
        is_prose = _is_prose(record)
        where = f"`{key}` of its JSON"
    if not isinstance(text, str):
        raise BadSample(f"{where} is {_type_of(text)}, not text")
    if not text.strip():
        raise BadSample(f"{where} is empty")
    return text, is_prose


def _is_prose(record: dict[str, Any]) -> bool:
    """Return whether a sample says that its texts have no markers."""
    found = record.get("markers")
    if found is None or isinstance(found, bool):
        return found is False
    raise BadSample(f"`markers` of its JSON is {_type_of(found)}, not true or false")


def _json_of(member: Callable[[str], bytes | None]) -> dict[str, Any]:
    raw = member("json")
    if raw is None:
        raise BadSample("it has no .json")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadSample(f"its .json cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise BadSample(f"its .json is {_type_of(found)}, not an object")
    return found


def _of_key(record: dict[str, Any], key: str | None, usual: tuple[str, ...]) -> tuple[str, Any]:
    """Return the key that holds the text, and its value."""
    for each in usual if key is None else (key,):
        if each in record:
            return each, record[each]
    wanted = " or ".join(f"`{each}`" for each in (usual if key is None else (key,)))
    raise BadSample(f"its .json has no key {wanted}")


def _objects(record: dict[str, Any], key: str) -> list[Any] | None:
    """Return a list of objects beside the messages, which may be JSON in a string, as in tables."""
    found = record.get(key)
    if isinstance(found, str):
        with suppress(ValueError, RecursionError):
            found = json.loads(found)
    if found is None or (isinstance(found, list) and all(isinstance(x, dict) for x in found)):
        return found
    raise BadSample(f"`{key}` of its JSON is {_type_of(found)}, not a list of objects")


def _message(turn: Any, markers: dict[str, Medium]) -> Message:
    """Return a turn, which has `role` and `content` or, as in LLaVA, `from` and `value`."""
    if not isinstance(turn, dict):
        raise BadSample(f"one of its messages is {_type_of(turn)}, not an object")
    names = ("role", "content") if "role" in turn else ("from", "value")
    role, content = (turn.get(name) for name in names)
    if not isinstance(role, str):
        raise BadSample("one of its messages has no role")
    # As in transformers, a key whose value is null is absent.
    rest = {key: value for key, value in turn.items() if key not in names and value is not None}
    calls = rest.get("tool_calls", [])
    if not isinstance(calls, list):
        raise BadSample(f"`tool_calls` of a message is {_type_of(calls)}, not a list")
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name.strip():
            raise BadSample("a call of a tool has no name")
    # A tool may return any JSON, such as a list of numbers, which is neither text nor parts.
    if isinstance(content, list):
        is_said = all(isinstance(each, dict) and "type" in each for each in content)
    else:
        is_said = content is None or isinstance(content, str)
    if role == "tool" and not is_said:
        return Message(role, None, {**rest, "content": content})
    parts = None if content is None else tuple(_parts(content, markers))
    return Message(_ROLES.get(role, role), parts, rest, in_parts=isinstance(content, list))


def _parts(content: Any, markers: dict[str, Medium]) -> list[MessagePart]:
    if isinstance(content, str):
        return _split(content, markers)
    if not isinstance(content, list):
        raise BadSample(f"the content of a message is {_type_of(content)}")
    parts: list[MessagePart] = []
    for each in content:
        kind = each.get("type") if isinstance(each, dict) else None
        if kind == "text" and isinstance(each.get("text"), str):
            parts += _split(each["text"], markers)
        elif isinstance(kind, str) and kind in _PART_MEDIA:
            parts.append(MessagePart(_PART_MEDIA[kind]))
        else:
            raise BadSample(f"a message has a part of unknown type {kind!r}")
    return parts


def _split(text: str, markers: dict[str, Medium]) -> list[MessagePart]:
    """Cut a text at its markers, but not where a backslash says that one is text.

    Two backslashes are none: formulas end lines with them.
    """
    pieces = re.split(rf"(?<!(?<!\\)\\)({'|'.join(map(re.escape, markers)) or '(?!)'})", text)
    parts = [
        MessagePart(markers[each]) if each in markers else MessagePart("text", each)
        for each in pieces
    ]
    return [part for part in parts if part.kind != "text" or part.text]


def _type_of(value: Any) -> str:
    """Return the type of a JSON value, in words."""
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    if isinstance(value, list | str | dict) and not value:
        return f"{names[type(value)]} of nothing"
    return names.get(type(value), "a number")
