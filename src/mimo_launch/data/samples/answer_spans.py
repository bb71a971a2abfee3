"""The positions of the assistant's answers in the text of a conversation.

Decides: that an answer is the text that the model has to write: from the end of the template's
prompt for an answer to the token that ends the turn, including tool calls and reasoning. In a
template with `{% generation %}` blocks, the answers are the blocks.
Relies on: marks around all contents of messages, which the template copies into the text; the text
must otherwise be unchanged.
Leaves: tokens to `sample_encoder`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os.path import commonprefix
from typing import Any

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.chat_template import ChatFormat, Said
from mimo_launch.data.samples.messages import REASONING, Message
from mimo_launch.data.samples.template_program import (
    MOST,
    PRIVATE,
    Marked,
    Spans,
    mark_message,
    read_marks,
    start_mark,
)
from mimo_launch.diag.frozen import frozen

_ADVICE = (
    "in the chat_template.jinja of the tokenizer, write `{% generation %}` before what the "
    "assistant says and `{% endgeneration %}` after the token that ends it"
)


# Keys of messages that are always read or, if not, refused.
_READ = frozenset({"role", "content", "tool_calls", *REASONING})
# Keys that name media, which a record has beside its messages.
_MEDIA = frozenset({"image", "images", "audio", "audios", "video", "videos"})
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


@frozen
class TextPiece:
    """A part of a message that can get marks: the content, the reasoning or a tool call."""

    message: int
    role: str
    name: str


class Conversation:
    """One conversation and its text."""

    def __init__(
        self,
        chat: ChatFormat,
        said: Said,
        settings: dict[str, Any],
        end: str,
        messages: Sequence[Message],
    ) -> None:
        """Render the conversation with its template.

        Args:
            chat: The template.
            said: The messages, in the form that the template takes.
            settings: Other arguments of the template: `tools` and `documents`.
            end: A regular expression for a token that may end a turn.
            messages: The same messages, with their loss settings and their places in the record.

        Raises:
            BadSample: The template refuses the conversation or drops a part of it, or its text is
                too long.
        """
        if PRIVATE.search(json.dumps([said, settings], ensure_ascii=False)):
            raise BadSample("it has characters of Unicode's last two private-use planes")
        self._chat, self._said, self._settings = chat, said, settings
        self._without_loss = {at for at, each in enumerate(messages) if not each.in_loss}
        self._numbers = [each.number for each in messages]
        self._end, self._end_behind = re.compile(end), re.compile(rf"\s*(?:{end})")
        self._word_end = re.compile(rf"\s|{end}")
        self.text = chat.render(said, **settings)
        self._pieces: list[TextPiece] = []
        for number, message in enumerate(said):
            mark_message(message, partial(self._new, number, message["role"]))
        self._chosen, self._whole = self._find_marks()
        self._refuse_losses()

    def answers(self) -> Spans:
        """Return the start and end of each answer. Raises: BadSample if one cannot be found."""
        if self._chat.marks_answers:
            return list(self._blocks()) if self._without_loss else self._whole.blocks
        numbers = {piece.message for piece in self._pieces if piece.role == "assistant"}
        spans = [self._answer(number) for number in sorted(numbers - self._without_loss)]
        return [span for span in spans if span is not None]

    def ignored(self) -> Iterator[str]:
        """Yield what the template does not read: keys of messages, reasoning of earlier answers.

        Raises: BadSample if an unread key names images, clips or videos.
        """
        if any(each.strip() not in self.text for each in map(_reasoning, self._said)):
            yield "reasoning of earlier answers"
        for key in dict.fromkeys(key for message in self._said for key in message):
            if key in _READ:
                continue
            said = [{k: v for k, v in message.items() if k != key} for message in self._said]
            try:
                reads = self._chat.names(key) and (
                    self._chat.render(said, **self._settings) != self.text
                )
            except BadSample:
                reads = True
            if not reads and key in _MEDIA and any(message.get(key) for message in self._said):
                raise BadSample(
                    f"`{key}` of a message is not read: name its files beside the messages, and "
                    "write a marker such as `<image>` for each in the text"
                )
            if not reads:
                yield f"`{key[:40]}` of messages"

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the blocks of `{% generation %}`, except for messages that are not learnt."""
        for start, end in self._whole.blocks:
            here = {
                self._pieces[n].message in self._without_loss
                for n, (first, last) in self._whole.places.items()
                if start <= first and last <= end
            }
            if len(here) != 1:
                raise BadSample("it is unclear which message an answer of the template is of")
            if not here.pop():
                yield start, end

    def _new(self, message: int, role: str, name: str) -> int:
        self._pieces.append(TextPiece(message, role, name))
        if len(self._pieces) > MOST:
            raise BadSample(f"it has more than {MOST:,} messages and calls")
        return len(self._pieces) - 1

    def _render(
        self, chosen: Callable[[TextPiece], bool], most: int | None = None, **settings: Any
    ) -> Marked:
        """Return the text of the first messages, with marks around the chosen pieces."""
        return self._read(self._with_marks(chosen, most), **settings)

    def _with_marks(self, chosen: Callable[[TextPiece], bool], most: int | None) -> Said:
        numbers = iter(range(len(self._pieces)))

        def number(name: str) -> int | None:
            found = next(numbers)
            return found if chosen(self._pieces[found]) else None

        return [mark_message(message, number) for message in self._said[:most]]

    def _read(self, said: Said, **settings: Any) -> Marked:
        settings = {**self._settings, **settings}
        marks = self._chat.marks_answers
        return read_marks(self._chat.render(said, marks_blocks=marks, **settings))

    def _find_marks(self) -> tuple[Callable[[TextPiece], bool], Marked]:
        """Return the text with marks around as many pieces as possible without other changes."""
        choices: tuple[Callable[[TextPiece], bool], ...] = (
            lambda _: True,
            lambda piece: piece.role == "assistant",
            # Blocks need no other marks.
            *((lambda _: False,) if self._chat.marks_answers else ()),
        )
        for chosen in choices:
            try:
                found = self._render(chosen)
            except BadSample:
                continue
            if found.text == self.text:
                return chosen, found
        raise BadSample(
            f"the chat template changes its answers, so they cannot be found in its text: {_ADVICE}"
        )

    def _refuse_losses(self) -> None:
        """Refuse a conversation if the template drops a part of it.

        A part that the template writes only in the last turn, such as reasoning, may be absent from
        earlier turns.
        """
        for key in (key for key, value in self._settings.items() if value):
            try:
                without = self._chat.render(self._said, **{**self._settings, key: None})
            except BadSample:
                continue  # The template fails without the piece, so it reads it.
            if without == self.text:
                raise BadSample(_lost(key, ""))
        for number, piece in enumerate(self._pieces):
            if number in self._whole.places:
                continue
            if self._writes(piece, None) or self._writes(piece, piece.message + 1):
                continue
            where = f" of message {self._numbers[piece.message]} ({piece.role})"
            answers = ", so this answer would not be learnt" if piece.role == "assistant" else ""
            raise BadSample(_lost(piece.name, where + answers))

    def _writes(self, piece: TextPiece, most: int | None) -> bool:
        """Return whether marks around a piece appear in the text of the first messages."""
        try:
            found = self._render(lambda each: each is piece, most)
        except BadSample:
            return True
        return bool(found.places) or (most is None and found.text != self.text)

    def _answer(self, message: int) -> tuple[int, int] | None:
        """Return the start and end of the answer in a message; None if all of it is left out."""
        here = [self._whole.places[n] for n in self._of(message) if n in self._whole.places]
        if not here:
            return None
        first, last = min(a for a, _ in here), max(b for _, b in here)
        return self._start(message, first), self._last(message, last)

    def _of(self, message: int) -> Iterator[int]:
        return (n for n, piece in enumerate(self._pieces) if piece.message == message)

    def _start(self, message: int, first: int) -> int:
        """Return where the answer starts: after the prompt for an answer.

        A template without such a prompt writes the same text before any answer.
        """
        lead = self._lead(message)
        if lead is None:
            raise BadSample(_unknown(self._numbers[message]))
        start, is_near = self._common(lead, message, first)
        if not is_near and start < first:
            raise BadSample(_unknown(self._numbers[message]))
        return start

    def _lead(self, message: int) -> Marked | None:
        """Return the text up to an answer."""
        if self._chat.has_prompt:
            try:
                return self._render(self._chosen, message, add_generation_prompt=True)
            except BadSample:
                pass  # The template may require a message.
        text = f"{start_mark(MOST)}x"
        content = text if self._chat.takes_text else [{"type": "text", "text": text}]
        said = self._with_marks(self._chosen, message)
        try:
            found = self._read([*said, {"role": "assistant", "content": content}])
        except BadSample:
            return None
        if MOST not in found.places:
            return None
        # Blanks before an answer belong to it: its first token begins with them.
        return Marked(found.text[: found.places[MOST][0]].rstrip(" "), found.places, [])

    def _last(self, message: int, last: int) -> int:
        """Return where the answer ends: after the token that ends the turn."""
        after = [a for n, (a, _) in self._whole.places.items() if self._pieces[n].message > message]
        gap = self.text[last : min(after, default=len(self.text))]
        is_content = any(
            self._pieces[n].name == "content" and self._whole.places.get(n, (0, 0))[1] == last
            for n in self._of(message)
        )
        # A special token behind text that an image follows opens this image.
        ends_with_text = not _ends_with_medium(self._said[message].get("content"))
        if is_content and ends_with_text and (found := self._end_behind.match(gap)):
            return last + found.end()
        ends = [found.end() for found in self._end.finditer(gap)]
        if message + 1 == len(self._said):
            own, is_whole = gap, True
        else:
            alone = self._render(self._chosen, message + 1)
            stop = max(alone.places[n][1] for n in self._of(message) if n in alone.places)
            own = commonprefix([gap, alone.text[stop:]])  # noqa: RUF071
            is_whole = len(own) == len(alone.text) - stop
        inside = [end for end in ends if end <= len(own)]
        if is_whole:
            return last + (inside[-1] if inside else len(own.rstrip()))
        # The template may end this turn with another token when it is not the last turn.
        return last + next((end for end in ends if end > len(own)), len(own.rstrip()))

    def _common(self, lead: Marked, message: int, first: int) -> tuple[int, bool]:
        """Return the position up to which the text equals `lead`, the text up to an answer.

        The comparison starts at the last mark before the answer that both texts have. The second
        value says whether the result is certain: the mark belongs to the last piece, or all of
        `lead` is equal.
        """
        before = [n for n, piece in enumerate(self._pieces) if piece.message < message]
        both = [n for n in before if n in lead.places and n in self._whole.places]
        anchor = max(both, key=lambda n: lead.places[n][1], default=None)
        here, there = (
            (0, 0) if anchor is None else (self._whole.places[anchor][1], lead.places[anchor][1])
        )
        rest, gap = lead.text[there:], self.text[here:first]
        common = len(commonprefix([gap, rest]))  # noqa: RUF071
        if common < min(len(rest), len(gap)):  # Go back to the end of a word.
            words = [found.end() for found in self._word_end.finditer(rest, 0, common)]
            common = words[-1] if words else 0
        latest = self._pieces[before[-1]].message if before else None
        is_near = not before or (anchor is not None and self._pieces[anchor].message == latest)
        return here + common, is_near or common == len(rest)


def _reasoning(message: Mapping[str, Any]) -> str:
    """Return the reasoning of an answer, under its key or in its text."""
    if message["role"] != "assistant":
        return ""
    said, content = message.get(REASONING[0]), message.get("content")
    texts = [content] if isinstance(content, str) else [x.get("text") for x in content or ()]
    inside = (found[1] for text in texts if text for found in _THOUGHT.finditer(text))
    return said if isinstance(said, str) else next(inside, "")


def _ends_with_medium(content: Any) -> bool:
    """Return whether the content of a message ends with an image, a clip or a video."""
    return isinstance(content, list) and bool(content) and content[-1].get("type") != "text"


def _lost(name: str, where: str) -> str:
    return (
        f"the chat template does not write `{name}`{where}: take the tokenizer of a model that "
        f"supports it, or leave it out of the record"
    )


def _unknown(number: int) -> str:
    return f"it is unclear where the answer in message {number} begins and ends: {_ADVICE}"
