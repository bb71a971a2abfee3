"""The messages of a conversation: role, content, and whether it is learnt.

Decides: which forms of a message are understood, and where a text has markers.
Relies on: `record_keys` for the meaning of a message's keys.
Leaves: the other keys of a record to `records`, writing messages as text to `chat_template`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.decode_media import Medium
from mimo_launch.data.samples.record_keys import (
    CALLS,
    LEARNT,
    NOT_ANSWERS,
    OLD_CALL,
    RESULTS,
    ROLES,
    calls_of,
    ignored_keys,
    in_loss,
)
from mimo_launch.diag.frozen import frozen

# Keys of an assistant's reasoning; current templates use the first.
REASONING = ("reasoning_content", "thinking", "reasoning")
# More parts than any document has; a template needs seconds for this many.
MOST_PARTS = 1 << 16
_PART_MEDIA: dict[str, Medium] = {
    "image": "image",
    "image_url": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
}
Markers = Mapping[str, Medium]


@frozen
class MessagePart:
    """A piece of a message: some text, or the next image, clip or video of the sample."""

    kind: Literal["text"] | Medium
    text: str = ""


@frozen
class Message:
    """One turn. `rest` are keys that only the chat template knows, such as tool calls.

    `parts` is None if there is no content, or if the content is a JSON value in `rest`; `in_parts`
    says whether the content was a list. `in_loss` matters only for answers. `number` is the place
    in the record, counted from 1; 0 if the message is not in the record.
    """

    role: str
    parts: tuple[MessagePart, ...] | None
    rest: Mapping[str, Any] = field(default_factory=dict)
    in_parts: bool = False
    in_loss: bool = True
    number: int = 0

    def says_something(self) -> bool:
        """Return whether the message has text, tool calls or reasoning."""
        texts = [part.text for part in self.parts or ()]
        reasoning = [self.rest[key] for key in REASONING if isinstance(self.rest.get(key), str)]
        return any(text.strip() for text in texts + reasoning) or bool(self.rest.get("tool_calls"))


def read_messages(turns: Sequence[Any], markers: Markers) -> tuple[list[Message], list[str]]:
    """Return messages, and a list of what is ignored in them. Raises: BadSample.

    Tool calls that are separate messages belong to the answer before them.
    """
    messages: list[Message] = []
    ignored: list[str] = []
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            raise BadSample(f"one of its messages is {type_of(turn)}, not an object")
        role = turn.get("role" if "role" in turn else "from")
        if not isinstance(role, str):
            raise BadSample("one of its messages has no role")
        where = f"message {number} ({role})"
        message = _message(turn, role, number, markers)
        if isinstance(content := turn.get(_content_key(turn)), list):
            ignored += _ignored_of_parts(content, where)
        if message.role not in NOT_ANSWERS and message.role != "assistant":
            ignored.append(f"the role `{role[:40]}`, which is not learnt,")
        last = messages[-1] if messages else None
        if role in CALLS and last is not None and last.role == "assistant":
            messages[-1] = joined = _join(last, message, where)
            ignored += (
                f"`{key[:40]}` of calls"
                for key, value in message.rest.items()
                if key != "tool_calls" and joined.rest[key] != value
            )
        else:
            messages.append(message)
    if sum(len(each.parts or ()) for each in messages) > MOST_PARTS:
        raise BadSample(f"its messages have more than {MOST_PARTS:,} parts")
    return messages, ignored


def _join(answer: Message, call: Message, where: str) -> Message:
    """Return an answer with the tool calls of the message after it. Raises: BadSample."""
    if answer.in_loss != call.in_loss:
        raise BadSample(f"{where} and the answer before it are one, but one is not learnt")
    calls = [*answer.rest.get("tool_calls", ()), *call.rest["tool_calls"]]
    for key in call.rest.keys() & {*REASONING}:
        raise BadSample(f"{where} has `{key}` after the answer: write it in the answer")
    return replace(answer, rest={**call.rest, **answer.rest, "tool_calls": calls})


def _content_key(turn: Mapping[str, Any]) -> str:
    return "value" if "value" in turn and "content" not in turn else "content"


def _message(turn: Mapping[str, Any], role: str, number: int, markers: Markers) -> Message:
    """Return a turn with `role` and `content` or, as in LLaVA, with `from` and `value`."""
    where, key = f"message {number} ({role})", _content_key(turn)
    content = turn.get(key)
    said, is_call = in_loss(turn, where), role in CALLS
    named = "assistant" if is_call else ROLES.get(role, role)
    if said and named != "assistant":
        raise BadSample(f"{where} is to be learnt, but only answers of the assistant are")
    # As in transformers, a key with the value null is absent.
    known = ("role" if "role" in turn else "from", key, *LEARNT)
    rest = {name: value for name, value in turn.items() if name not in known and value is not None}
    if is_call:
        if "tool_calls" in rest:
            raise BadSample(f"{where} has calls as `content` and as `tool_calls`: leave one out")
        rest["tool_calls"], content = calls_of(content, where), ""
    elif OLD_CALL in rest and "tool_calls" not in rest:
        rest["tool_calls"] = calls_of([rest.pop(OLD_CALL)], where)
    _check_calls(rest.get("tool_calls", []), where)
    if key not in turn and not rest.keys() & {"tool_calls", *REASONING}:
        raise BadSample(f"{where} has no `content`")
    if len({str(rest[name]) for name in REASONING if name in rest}) > 1:
        raise BadSample(f"{where} has different reasoning under several keys")
    # A tool may return any JSON, such as a list of numbers, which is neither text nor parts.
    if isinstance(content, list):
        is_said = all(isinstance(each, dict) and "type" in each for each in content)
    else:
        is_said = content is None or isinstance(content, str)
    if role in ("tool", *RESULTS) and not is_said:
        return Message(role, None, {**rest, "content": content}, number=number)
    parts = None if content is None else tuple(_parts(content, markers))
    return Message(named, parts, rest, isinstance(content, list), said is not False, number)


def _check_calls(calls: Any, where: str) -> None:
    if not isinstance(calls, list):
        raise BadSample(f"`tool_calls` of a message is {type_of(calls)}, not a list")
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if function is None or not isinstance(name, str) or not name.strip():
            raise BadSample("a call of a tool has no name")
        _refuse_loss(call, f"a call of {where}")
        _refuse_loss(function, f"a call of {where}")


def _refuse_loss(keys: Mapping[str, Any], where: str) -> None:
    """Raise BadSample if a part of a message is excluded from the loss: only messages can be."""
    if in_loss(keys, where) is False:
        raise BadSample(f"{where} is not to be learnt: write that in the message")


def _parts(content: Any, markers: Markers) -> list[MessagePart]:
    if isinstance(content, str):
        return split(content, markers)
    if not isinstance(content, list):
        raise BadSample(f"the content of a message is {type_of(content)}")
    parts: list[MessagePart] = []
    for each in content:
        if not isinstance(each, dict):
            usual = '{"type": "text", "text": "..."}'
            raise BadSample(
                f"a message has a part that is {type_of(each)}, not an object such as {usual}"
            )
        kind = each.get("type")
        if kind == "text" and isinstance(each.get("text"), str):
            parts += split(each["text"], markers)
        elif isinstance(kind, str) and kind in _PART_MEDIA:
            parts.append(MessagePart(_PART_MEDIA[kind]))
        else:
            known = ", ".join(f"`{each}`" for each in ("text", *_PART_MEDIA))
            raise BadSample(f"a message has a part of unknown type {kind!r}; known are {known}")
    return parts


def _ignored_of_parts(content: Sequence[Any], where: str) -> Iterator[str]:
    """Yield the ignored keys of parts. Raises: BadSample if one is about the loss."""
    for part in content:
        if isinstance(part, dict):
            _refuse_loss(part, f"a part of {where}")
            unread = ignored_keys(part, "type", "text", *_PART_MEDIA, *LEARNT)
            yield from (f"{key} of parts of messages" for key in unread)


def split(text: str, markers: Markers) -> list[MessagePart]:
    """Split a text at its markers, except where a backslash makes a marker text.

    Two backslashes do not escape a marker: formulas end lines with them.
    """
    pieces = re.split(rf"(?<!(?<!\\)\\)({'|'.join(map(re.escape, markers)) or '(?!)'})", text)
    parts = [
        MessagePart(markers[each]) if each in markers else MessagePart("text", each)
        for each in pieces
    ]
    return [part for part in parts if part.kind != "text" or part.text]


def type_of(value: Any) -> str:
    """Return the type of a JSON value, in words."""
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    if isinstance(value, list | str | dict) and not value:
        return f"{names[type(value)]} of nothing"
    return names.get(type(value), "a number")
