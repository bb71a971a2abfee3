"""The chat template of a tokenizer: conversations as text, and where the answers stand in it.

Decides: how answers are found whatever the template does: by its own `{% generation %}` blocks if
it has them, else by marks put around the contents of the assistant's messages.
Relies on: Jinja2's sandbox; the environment is the one that transformers documents
(https://huggingface.co/docs/transformers/chat_templating_writing).
Leaves: tokens to `writer`.
"""

import json
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mimo_launch.train.data.dataset import BadSample
from mimo_launch.train.data.webdataset.decode import Medium
from mimo_launch.train.data.webdataset.records import Message, Part

# Characters that no text has: the last two planes of Unicode are for private use.
OPEN, CLOSE = "\U000ffffc", "\U000ffffd"
_PROBE = "probe"
# What a program in a sandbox comes to: it may divide by zero, or call itself for ever.
_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class TemplateRefused(ValueError):
    """A chat template cannot be used; the message says why."""


class _Generation(Extension):
    """`{% generation %}`: what the assistant wrote, between marks."""

    tags = {"generation"}  # noqa: RUF012  # As Jinja declares it.

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    @staticmethod
    def _marked(caller: Any) -> str:
        return f"{OPEN}{caller()}{CLOSE}"


class ChatFormat:
    """A chat template, ready to write conversations."""

    def __init__(self, source: str, specials: dict[str, str]) -> None:
        """Compile the template.

        Args:
            source: The template.
            specials: Names and texts of special tokens, such as `bos_token`.

        Raises:
            TemplateRefused: It cannot be compiled, or fails on one short conversation.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        # transformers offers the date as well. Here a sample must have the same tokens every day,
        # and templates that ask for a date have a fixed one for where there is none.
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise TemplateRefused(f"it cannot be compiled: {error}") from error
        self._specials = specials
        self.marks_answers = "endgeneration" in source
        self.takes_text = self._says_probe(_PROBE)
        self.takes_parts = self._says_probe([{"type": "text", "text": _PROBE}])
        if not self.takes_text and not self.takes_parts:
            raise TemplateRefused("it does not write the text of a user's message")

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """Return the text of messages; marks around answers if the template sets them itself.

        Raises: BadSample if the template refuses the conversation.
        """
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=False,
                **self._specials,
            )
        except _FAILURES as error:
            raise BadSample(f"the chat template refuses it: {error}") from error

    def answers(
        self, messages: Sequence[Message], markers: dict[Medium, str]
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and where answers start and end in it.

        `markers` stand for images and clips where the template takes text only.

        Raises: BadSample.
        """
        if any(sign in part.text for m in messages for part in m.parts for sign in (OPEN, CLOSE)):
            raise BadSample("it has characters of the last plane for private use")
        text = self.render([self._as_dict(m, markers) for m in messages])
        if self.marks_answers:
            return _take_marks(text)
        marked = [_mark(m) if m.role == "assistant" else m for m in messages]
        num_marked = sum(m is not old for m, old in zip(marked, messages, strict=True))
        plain, spans = _take_marks(self.render([self._as_dict(m, markers) for m in marked]))
        if plain != text or len(spans) != num_marked:
            raise BadSample("the chat template changes its answers, so nobody knows where they are")
        return text, spans

    def media_text(self, medium: Medium) -> str | None:
        """Return what the template writes for an image or a clip; None if it takes text only.

        Raises: TemplateRefused if it takes parts of a message, but none of this medium.
        """
        if not self.takes_parts:
            return None
        text = {"type": "text", "text": _PROBE}
        try:
            with_one, without = (
                self.render([{"role": "user", "content": content}])
                for content in ([{"type": medium}, text], [text])
            )
        except BadSample as error:
            raise TemplateRefused(
                f"of a message with a part of type `{medium}`: {error}"
            ) from error
        start = 0
        while start < len(without) and without[start] == with_one[start : start + 1]:
            start += 1
        return with_one[start : start + len(with_one) - len(without)]

    def _as_dict(self, message: Message, markers: dict[Medium, str]) -> dict[str, Any]:
        """Return a message as a template takes it."""
        said = {"role": message.role, **message.rest}
        if not message.parts and message.rest:
            return said
        has_media = any(part.kind != "text" for part in message.parts)
        if self.takes_parts and (has_media or not self.takes_text):
            content: Any = [
                {"type": "text", "text": part.text} if part.kind == "text" else {"type": part.kind}
                for part in message.parts
            ]
        else:
            content = "".join(
                part.text if part.kind == "text" else markers[part.kind] for part in message.parts
            )
        return {**said, "content": content}

    def _says_probe(self, content: Any) -> bool:
        """Return whether the template writes a user's message of this form as it should."""
        try:
            said = self.render([{"role": "user", "content": content}])
        except BadSample:
            return False
        return _PROBE in said and "'type'" not in said


def _mark(message: Message) -> Message:
    """Return an answer with marks around it, inside white space that a template may trim."""
    parts = list(message.parts)
    said = [i for i, part in enumerate(parts) if part.text.strip()]
    if not said:
        return message
    first, last = said[0], said[-1]
    text = parts[first].text
    indent = len(text) - len(text.lstrip())
    parts[first] = Part("text", text[:indent] + OPEN + text[indent:])
    text = parts[last].text
    end = len(text.rstrip())
    parts[last] = Part("text", text[:end] + CLOSE + text[end:])
    return Message(message.role, tuple(parts), message.rest)


def _take_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without its marks, and what stood between them. Raises: BadSample."""
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    for number, piece in enumerate(text.split(OPEN)):
        inside, mark, behind = piece.partition(CLOSE)
        if (mark == CLOSE) != (number > 0) or CLOSE in behind:
            raise BadSample("the chat template changes its answers, so nobody knows where they are")
        if mark:
            spans.append((length, length + len(inside)))
        pieces += [inside, behind]
        length += len(inside) + len(behind)
    return "".join(pieces), spans


def _to_json(value: Any, **settings: Any) -> str:
    """Return JSON without the escapes for HTML that Jinja's own filter makes."""
    return json.dumps(value, **{"ensure_ascii": False, **settings})


def _raise(message: str) -> None:
    raise TemplateError(message)
