"""The chat template of a tokenizer: conversations as text, as `apply_chat_template` writes them.

Decides: the form in which a template gets messages, and which of several templates is used.
Relies on: `template_program` to run a template.
Leaves: finding the answers to `answer_spans`, tokens to `sample_encoder`.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.decode_media import Marker, Medium
from mimo_launch.data.samples.messages import REASONING, Message
from mimo_launch.data.samples.record_keys import RESULTS
from mimo_launch.data.samples.records import Record
from mimo_launch.data.samples.template_program import Program, TemplateRefused
from mimo_launch.processors.tokenizer import DEFAULT, FOR_TOOLS, FOR_VIDEOS
from mimo_launch.spec.spec import ChatTemplate

_PROBE = "probe"
Said = list[dict[str, Any]]


class ChatFormat:
    """A chat template, ready to write conversations."""

    def __init__(self, program: Program, most: int) -> None:
        """Try the template; a conversation may have `most` characters.

        Raises: TemplateRefused if it fails on one short conversation.
        """
        self._program, self._most = program, most
        self.marks_answers = program.marks_answers
        in_parts = [{"type": "text", "text": _PROBE}]
        self._refused = ""
        self.takes_text = self._says_probe(_PROBE)
        self.takes_parts = self._says_probe(in_parts)
        if not self.takes_text and not self.takes_parts:
            why = "it does not write the text of a user's message" + self._refused
            if self._program.lacks_date:
                why += (
                    "; if it asks for the date, give one, the same for all samples: "
                    f"`template: {{kind: chat, date: {date.today().isoformat()}}}`"
                )
            raise TemplateRefused(why)
        asked: Said = [{"role": "user", "content": _PROBE if self.takes_text else in_parts}]
        # In a template without a prompt for answers, `add_generation_prompt` changes nothing.
        self.has_prompt = self.render(asked) != self.render(asked, add_generation_prompt=True)

    def render(self, said: Said, **settings: Any) -> str:
        """Return the text of messages in the form that a template takes.

        Raises: BadSample if the template refuses the conversation, or its text is too long.
        """
        usual = {"tools": None, "documents": None, "add_generation_prompt": False}
        text = self._program.run(**{"messages": said, **usual, **settings})
        if len(text) > self._most:
            raise BadSample(
                f"its text has {len(text):,} characters, but `data.max_characters` allows "
                f"{self._most:,}"
            )
        return text

    def dicts(self, messages: Sequence[Message], markers: Mapping[Marker, str]) -> Said:
        """Return messages in the form that the template takes.

        `markers` replace images and clips if the template takes only text.
        """
        return [self._as_dict(message, markers) for message in messages]

    def names(self, key: str) -> bool:
        """Return whether the template may read a key of this name."""
        return key in self._program.source

    def media_text(self, medium: Medium) -> str | None:
        """Return the text that the template writes for a medium; None if it takes only text.

        Raises: TemplateRefused if it takes parts of a message, but none of this medium.
        """
        if not self.takes_parts:
            return None
        text = {"type": "text", "text": _PROBE}
        try:
            with_one, without = (
                self.render([{"role": "user", "content": content}])
                for content in ([_shown(medium), text], [text])
            )
        except BadSample as error:
            raise TemplateRefused(
                f"of a message with a part of type `{medium}`: {error}"
            ) from error
        start = _alike(with_one, without)
        # Something else may differ, too, such as a blank before text that comes first.
        after = _alike(with_one[start:][::-1], without[start:][::-1])
        return with_one[start : len(with_one) - after]

    def _as_dict(self, message: Message, markers: Mapping[Marker, str]) -> dict[str, Any]:
        role = message.role
        if role in RESULTS and not any(
            f"{quote}{role}{quote}" in self._program.source for quote in "'\""
        ):
            role = "tool"
        said = {"role": role, **message.rest}
        # As in transformers, older templates also get the reasoning under their own names.
        reasoning = next((said[key] for key in REASONING if key in said), None)
        if reasoning is not None:
            said = {"thinking": reasoning, **said, "reasoning_content": reasoning}
        if message.parts is None:
            return said
        has_media = any(part.kind != "text" for part in message.parts)
        if self.takes_parts and (has_media or message.in_parts or not self.takes_text):
            content: Any = [
                {"type": "text", "text": part.text} if part.kind == "text" else _shown(part.kind)
                for part in message.parts
            ]
        else:
            content = "".join(
                part.text if part.kind == "text" else markers[part.kind] for part in message.parts
            )
        return {**said, "content": content}

    def _says_probe(self, content: Any) -> bool:
        """Return whether the template writes the text of a user's message of this form."""
        try:
            # A template that writes text in other letters has read it.
            said = self.render([{"role": "user", "content": content}]).lower()
        except BadSample as error:
            self._refused = self._refused or f": {error}"
            return False
        return _PROBE in said and "'type'" not in said


def _alike(first: str, second: str) -> int:
    """Return how many characters are the same at the start of two texts."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


def _shown(medium: Medium) -> dict[str, Any]:
    """Return an image, a clip or a video as a part of a message.

    Some templates test its type; others, such as Qwen2-Audio's, test for a key with that name. The
    value of the key is not a text, because a template is expected to write all texts.
    """
    return {"type": medium, medium: True}


class ChatFormats:
    """The chat templates of a tokenizer: one, and perhaps others for tools and for videos."""

    def __init__(
        self,
        sources: Mapping[str, str],
        specials: dict[str, Any],
        template: ChatTemplate,
        most: int,
        images: tuple[str, str] | None,
    ) -> None:
        """Compile the templates. Raises: TemplateRefused."""
        day = None if template.date is None else date.fromisoformat(template.date)
        variables = {**specials, **template.variables}
        self._formats = {
            name: ChatFormat(Program(source, variables, day, images), most)
            for name, source in sources.items()
            if name in (DEFAULT, FOR_TOOLS, FOR_VIDEOS)
        }

    @property
    def usual(self) -> ChatFormat:
        """The template for conversations without tools."""
        return self._formats[DEFAULT]

    def of(self, record: Record) -> ChatFormat:
        """Return the template for a conversation, as transformers chooses it."""
        if "video" in record.media() and FOR_VIDEOS in self._formats:
            return self._formats[FOR_VIDEOS]
        name = FOR_TOOLS if record.tools is not None else DEFAULT
        return self._formats.get(name, self.usual)

    def media_text(self, medium: Medium) -> str | None:
        """Return the text for an image, a clip or a video; None if templates take only text.

        Raises: TemplateRefused if the template writes none of this medium.
        """
        name = FOR_VIDEOS if medium == "video" else DEFAULT
        return self._formats.get(name, self.usual).media_text(medium)
