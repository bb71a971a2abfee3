"""The chat template of a tokenizer: conversations as text, as `apply_chat_template` writes them.

Decides: in which form a template gets messages, and which of several templates is taken.
Relies on: `jinja` to run them.
Leaves: where the answers stand to `answer_spans`, tokens to `sample_encoder`.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.decode import Medium
from mimo_launch.data.webdataset.jinja import Program, TemplateRefused
from mimo_launch.data.webdataset.records import REASONING, Message, Record
from mimo_launch.hugging_face.tokenizer import DEFAULT, FOR_TOOLS
from mimo_launch.spec.model import ChatTemplate

_PROBE = "probe"
Said = list[dict[str, Any]]


class ChatFormat:
    """A chat template, ready to write conversations."""

    def __init__(self, source: str, variables: dict[str, Any], day: date | None, most: int) -> None:
        """Compile the template.

        Args:
            source: The template.
            variables: What it finds in every conversation, such as `bos_token`.
            day: What it gets when it asks for the date, if anything.
            most: Characters that a conversation may have.

        Raises:
            TemplateRefused: It cannot be compiled, or fails on one short conversation.
        """
        self._program, self._most = Program(source, variables, day), most
        self.marks_answers = self._program.marks_answers
        asked: Said = [{"role": "user", "content": _PROBE}]
        self._refused = ""
        self.takes_text = self._says_probe(_PROBE)
        self.takes_parts = self._says_probe([{"type": "text", "text": _PROBE}])
        if not self.takes_text and not self.takes_parts:
            why = "it does not write the text of a user's message" + self._refused
            if self._program.lacks_date:
                why += (
                    "; if it asks for the date, give one, the same for all samples: "
                    f"`template: {{kind: chat, date: {date.today().isoformat()}}}`"
                )
            raise TemplateRefused(why)
        if not self.takes_text:
            asked = self.dicts([Message("user", (), {"content": asked[0]["content"]})], {})
        # Without a prompt for an answer, `add_generation_prompt` changes nothing.
        self.has_prompt = self.render(asked) != self.render(asked, add_generation_prompt=True)

    def render(self, said: Said, **settings: Any) -> str:
        """Return the text of messages as a template takes them.

        Raises: BadSample if the template refuses the conversation, or its text is too long.
        """
        usual = {"tools": None, "documents": None, "add_generation_prompt": False}
        text = self._program.run(**{"messages": said, **usual, **settings})
        if len(text) > self._most:
            raise BadSample(
                f"its text has {len(text):,} characters, `data.max_characters` allows "
                f"{self._most:,}"
            )
        return text

    def dicts(self, messages: Sequence[Message], markers: Mapping[Medium, str]) -> Said:
        """Return messages as a template takes them.

        `markers` stand for images and clips where the template takes text only.
        """
        return [self._as_dict(message, markers) for message in messages]

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

    def _as_dict(self, message: Message, markers: Mapping[Medium, str]) -> dict[str, Any]:
        said = {"role": message.role, **message.rest}
        # As transformers does: the reasoning has the names that older templates ask for, too.
        reasoning = next((said[key] for key in REASONING if key in said), None)
        if reasoning is not None:
            said = {"thinking": reasoning, **said, "reasoning_content": reasoning}
        if message.parts is None:
            return said
        has_media = any(part.kind != "text" for part in message.parts)
        if self.takes_parts and (has_media or message.in_parts or not self.takes_text):
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
        except BadSample as error:
            self._refused = self._refused or f": {error}"
            return False
        return _PROBE in said and "'type'" not in said


class ChatFormats:
    """The chat templates of a tokenizer: one, or one for tools beside it."""

    def __init__(
        self,
        sources: Mapping[str, str],
        specials: dict[str, Any],
        template: ChatTemplate,
        most: int,
    ) -> None:
        """Compile the templates. Raises: TemplateRefused."""
        day = None if template.date is None else date.fromisoformat(template.date)
        variables = {**specials, **template.variables}
        self._formats = {
            name: ChatFormat(source, variables, day, most)
            for name, source in sources.items()
            if name in (DEFAULT, FOR_TOOLS)
        }

    @property
    def usual(self) -> ChatFormat:
        """The template of conversations without tools."""
        return self._formats[DEFAULT]

    def of(self, record: Record) -> ChatFormat:
        """Return the template of a conversation, as transformers chooses it."""
        name = FOR_TOOLS if record.tools is not None else DEFAULT
        return self._formats.get(name, self.usual)
