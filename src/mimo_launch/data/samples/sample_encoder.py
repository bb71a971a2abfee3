"""Samples as tokens, and which of them are learned.

Decides: that the loss is over a caption and its end token, or over the answers of a conversation
with the token that ends each turn.
Relies on: `text_tokens` for ids; ids of conversations equal those of transformers'
`apply_chat_template`.
Leaves: the token that marks an image or a clip to `media_text`, rows to `media_rows`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.answer_spans import Conversation
from mimo_launch.data.samples.chat_template import ChatFormats
from mimo_launch.data.samples.chosen_parts import ChosenParts
from mimo_launch.data.samples.decode_media import Marker, Medium
from mimo_launch.data.samples.media_rows import ShardInputs
from mimo_launch.data.samples.media_text import find_markers, tile_text, with_parts
from mimo_launch.data.samples.messages import Message, MessagePart
from mimo_launch.data.samples.records import Record, read_records
from mimo_launch.data.samples.template_program import Spans, TemplateRefused, TooMuch, bounds
from mimo_launch.data.samples.text_tokens import EncodedSample, TextTokens
from mimo_launch.processors.image_texts import image_text
from mimo_launch.processors.tokenizer import DEFAULT, chat_sources, special_texts
from mimo_launch.processors.video_words import sound_words, words_of
from mimo_launch.spec.spec import CaptionTemplate, ChatTemplate, Spec, UserData
from mimo_launch.spec.user_data import Template

# For media in several places, the numbers from which their text is written.
Told = Mapping[Marker, Sequence[Sequence[int]]]
_WORDS: dict[Medium, str] = {"image": "image", "audio": "clip", "video": "video"}
_USUAL: dict[Medium, str] = {
    "image": ".png or .jpg",
    "audio": ".wav or .flac",
    "video": ".mp4 or .frames.zip",
}

_ESCAPE = (
    '; where a marker is only text, write a backslash before it, or `"markers": false` in the JSON'
)
_NOT_WRITTEN = (
    "the chat template writes nothing for images and clips: it must write a token for each part of "
    "a message that is no text, as templates of models that read images do"
)
_IN_TEXT = "its text has a token that stands for an image or a clip" + _ESCAPE


class SampleEncoder:
    """Turns samples into tokens, for one tokenizer, template and set of modules."""

    def __init__(self, spec: Spec, data: UserData, inputs: ShardInputs) -> None:
        """Load the tokenizer.

        Raises:
            TokenizerError: The folder has no usable tokenizer.
            TemplateRefused: Its chat template cannot be used with these encoders.
        """
        folder = Path(data.tokenizer)
        specials = special_texts(folder)
        self._tokens = TextTokens(folder, specials.get("eos_token", ""), data.max_characters)
        self._data = data
        self._reads_videos = inputs.reads_videos
        around = image_text(folder)
        says = inputs.says_time
        self._words = None if says is None else words_of(says, specials, around)
        self._sound = sound_words(specials) if inputs.hears_videos else None
        self._chat: ChatFormats | None = None
        self._chosen = ChosenParts()
        if isinstance(data.template, ChatTemplate):
            self._chosen = ChosenParts.of(data.template)
            sources = chat_sources(folder)
            if DEFAULT not in sources:
                raise TemplateRefused(f"{folder} has no chat template")
            try:
                with bounds():
                    self._chat = ChatFormats(
                        sources, specials, data.template, data.max_characters, around
                    )
            except TooMuch as error:
                raise TemplateRefused(f"it {error} for one short conversation") from error
        if self._words and self._chat is None:
            raise TemplateRefused("the time of videos is part of the text, which needs `chat`")
        if self._sound and self._chat is None:
            raise TemplateRefused("tokens surround a video with its sound, which needs `chat`")
        tokenizer = self._tokens.tokenizer
        self._markers = find_markers(spec, data, inputs, tokenizer, self._chat)
        self._tiles = tile_text(folder, self._markers["image"]) if inputs.cuts_images else None
        added = tokenizer.get_added_tokens_decoder()
        self.ends = frozenset(token for token, kind in added.items() if kind.special)
        texts = [added[token].content for token in self.ends]
        media = self._markers.values()
        # Longest first, because one may be a prefix of another.
        ends = sorted((each for each in texts if each not in media), key=len, reverse=True)
        self._ends = "|".join(map(re.escape, ends)) or "(?!)"
        shown = [data.image_marker, data.audio_marker]
        shown += [data.video_marker] * inputs.reads_videos
        self._tokens.expect(self._markers, [*shown, *media])

    @property
    def reads_txt(self) -> bool:
        """Whether a `.txt` may hold the text of a record."""
        return isinstance(self._data.template, CaptionTemplate) and self._data.template.text is None

    def read(self, member: Callable[[str], bytes | None]) -> tuple[Record, ...]:
        """Return the text of a record, or each of its captions; see `read_records`."""
        return read_records(self._data, member, videos=self._reads_videos)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on what ends an answer or a caption, one per line."""
        if self._chat is None:
            if self._tokens.end is not None:
                return ()
            return (
                "the tokenizer names no `eos_token` that it has, so the model does not learn where "
                "a caption ends; name one in the tokenizer_config.json of the tokenizer",
            )
        asked, said = (
            Message(role, (MessagePart("text", role),)) for role in ("user", "assistant")
        )
        try:
            (end,), (earlier, *_) = (
                [self._end_of(text, last) for _, last in answers]
                for text, answers, _ in (
                    self._render(Record(messages=each))
                    for each in ((asked, said), (asked, said, asked, said))
                )
            )
        except (BadSample, ValueError):  # Real samples will report any error.
            return ()
        if end:
            return ()
        if earlier:
            is_over = "messages[-1].role == 'assistant' and not add_generation_prompt"
            return (
                f"the chat template writes {earlier} after each answer but the last one, so the "
                "model does not learn to stop after that; at the end of the chat_template.jinja "
                f"of the tokenizer, write `{{%- if {is_over} %}}{earlier}{{% endif %}}`",
            )
        return (
            "the chat template does not end what is learnt of an answer with a special token, so "
            "the model does not learn where to stop; in the chat_template.jinja of the tokenizer, "
            "write `{{ eos_token }}` after the answer, before `{% endgeneration %}` if it has that",
        )

    def _end_of(self, text: str, last: int) -> str:
        """Return the special token at the end of `text[:last]`, or ""."""
        found = re.search(rf"(?:{self._ends})\Z", text[:last].rstrip())
        return found[0] if found else ""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as text, without special ones."""
        text: str = self._tokens.tokenizer.decode(list(tokens))
        return text

    @property
    def markers(self) -> Mapping[Marker, str]:
        """The token of each marker: the place of the rows of an image or a clip, or of a target."""
        return self._markers

    def encode(
        self,
        record: Record,
        members: Mapping[Marker, int],
        unread: Sequence[str] = (),
        told: Told | None = None,
    ) -> EncodedSample:
        """Return a sample as tokens.

        Args:
            record: Its text.
            members: The numbers of its images, clips, videos and targets.
            unread: Suffixes of its other members. If an image or a clip is missing, the user may
                have meant one of them.
            told: For each image in tiles, the columns of its grid, once per part; for each video,
                the time of each temporal patch in its text (see `video_words`).

        Raises:
            BadSample: Markers and members do not match, or nothing in the sample can be learnt.
        """
        told = told or {}
        for medium, word in _WORDS.items():
            if (count := members.get(medium, 0)) and medium not in self._markers:
                raise BadSample(f"it has {_count(count, word)}, but no encoder reads any")
        if isinstance(self._data.template, CaptionTemplate):
            if self._markers and unread and not any(members.values()):
                read = [each for each in _USUAL if each in self._markers or each != "video"]
                what = " or ".join(["image", "clip", "video"][: len(read)])
                raise BadSample(f"it has no {what}{_unread(unread, *read)}")
            encoded = self._caption(self._data.template, record, members, unread, told)
        else:
            encoded = self._conversation(record, members, unread, told)
        if not encoded.loss_mask.any() and not members.get("target"):
            raise BadSample("it has no token to learn from")
        return encoded

    def _caption(
        self,
        template: CaptionTemplate,
        record: Record,
        members: Mapping[Marker, int],
        unread: Sequence[str],
        told: Told,
    ) -> EncodedSample:
        """Return a caption after its media, or a document with media at its markers."""
        tiles = iter(map(len, told["image"]) if "image" in told else repeat(1))
        if record.media():
            self._refuse_other_number(record, members, unread)
        text, inside = template.prompt, list[Marker]()
        for part in record.caption:
            if part.kind == "text":
                text += self._tokens.literals.sign(part.text, is_prose=record.is_prose)
            else:
                pieces = next(tiles) if part.kind == "image" else 1
                text += self._markers[part.kind] * pieces
                inside += [part.kind] * pieces
        learn = [(len(template.prompt), len(text))]
        encoded = self._tokens.encode(text, learn, is_document=True)
        if [marker for _, marker in encoded.markers if marker != "target"] != inside:
            raise BadSample(_IN_TEXT)
        if inside:
            return encoded
        images = sum(map(len, told["image"])) if "image" in told else members.get("image", 0)
        media: list[Marker] = ["image"] * images
        media += ["audio"] * members.get("audio", 0)
        media += ["video"] * members.get("video", 0)
        shown = ((len(self._tokens.start), medium) for medium in media)
        return replace(encoded, markers=(*shown, *encoded.markers))

    def _conversation(
        self,
        record: Record,
        members: Mapping[Marker, int],
        unread: Sequence[str],
        told: Told,
    ) -> EncodedSample:
        self._refuse_other_number(record, members, unread)
        text, learn, ignored = self._render(record)
        parts: dict[Marker, Iterator[int]] = {}
        for shown, whole, written in self._part_texts(told):
            text, learn = with_parts(text, learn, whole, written, shown)
            # A video with its sound has one marker.
            is_one = shown == "video" and self._words is None
            parts[shown] = repeat(1) if is_one else map(len, told[shown])
        wanted = tuple(m for m in record.media() for _ in range(next(parts.get(m, repeat(1)))))
        encoded = self._tokens.encode(text, learn)
        found = tuple(marker for _, marker in encoded.markers if marker != "target")
        if found != wanted:
            if not found:
                raise BadSample(_NOT_WRITTEN)
            raise BadSample(
                f"the chat template writes {_count(len(found), 'marker')} for {len(wanted)}: "
                f"{_IN_TEXT}"
            )
        return replace(encoded, ignored=ignored)

    def _refuse_other_number(
        self, record: Record, members: Mapping[Marker, int], unread: Sequence[str]
    ) -> None:
        """Raise BadSample if the numbers of media and of their markers differ."""
        asked = Counter(record.media())
        for medium, word in _WORDS.items():
            have, want = members.get(medium, 0), asked[medium]
            if have != want:
                hint = _unread(unread, medium) + _ESCAPE if have < want else self._unmarked(medium)
                if medium == "video" and medium not in self._markers:
                    hint = "; no encoder reads videos: write `video` in the model of one"
                raise BadSample(
                    f"it has {_count(have, word)} and {_count(want, 'marker')} for them{hint}"
                )

    def _unmarked(self, medium: Medium) -> str:
        """Return what to write for a medium without a marker."""
        shown = getattr(self._data, f"{medium}_marker")
        own = self._markers.get(medium, shown)
        instead = "" if own == shown else f" (not `{own}`)"
        return f"; write `{shown}`{instead} in its text where it shows each {_WORDS[medium]}"

    def _part_texts(self, told: Told) -> Iterator[tuple[Marker, str, list[str]]]:
        """Yield each medium in parts, the text to replace, and the replacement for each one."""
        if self._tiles and told.get("image"):
            yield (
                "image",
                self._tiles.whole,
                [self._tiles.written(each, number) for number, each in enumerate(told["image"])],
            )
        words = self._words or self._sound
        if words and told.get("video"):
            marker = self._markers["video"]
            yield "video", marker, [words.written(marker, x) for x in told["video"]]

    def _render(self, record: Record) -> tuple[str, Spans, tuple[str, ...]]:
        """Return the text of a conversation, the spans of its answers, and its ignored keys."""
        if self._chat is None:
            raise TypeError("a conversation needs a chat template")
        chat = self._chat.of(record)
        signed = partial(self._tokens.literals.sign, is_prose=record.is_prose)
        settings = {"tools": signed(record.tools), "documents": signed(record.documents)}
        messages = [
            replace(
                message,
                rest=message.rest and signed(message.rest),
                parts=message.parts
                and tuple(MessagePart(part.kind, signed(part.text)) for part in message.parts),
            )
            for message in record.messages
        ]
        said = chat.dicts(messages, self._markers)
        try:
            with bounds():
                found = Conversation(chat, said, settings, self._ends, messages)
                learn = self._chosen.inside(found.text, found.answers())
                return found.text, learn, tuple(found.ignored())
        except TooMuch as error:
            named = " with ".join(["the chat template", *self._chosen.names])
            raise BadSample(f"{named} {error}") from error


class SampleEncoders:
    """The encoders of all templates of the data."""

    def __init__(self, spec: Spec, data: UserData, inputs: ShardInputs) -> None:
        """Load the tokenizer. Raises: TokenizerError, TemplateRefused."""
        self._by_template = {
            each.model_dump_json(): SampleEncoder(spec, data.replace(template=each), inputs)
            for each in data.templates
        }

    @property
    def usual(self) -> SampleEncoder:
        """The encoder of records of sources that name no template."""
        return next(iter(self._by_template.values()))

    def of(self, template: Template | None) -> SampleEncoder:
        """Return the encoder of a template."""
        return self.usual if template is None else self._by_template[template.model_dump_json()]

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of all encoders, each once."""
        every = (note for each in self._by_template.values() for note in each.notes)
        return tuple(dict.fromkeys(every))


def _unread(suffixes: Sequence[str], *media: Medium) -> str:
    """Return advice about members that are not read, if there are any."""
    if not suffixes:
        return ""
    named = ", ".join(f".{each}" for each in suffixes)
    kinds = " and ".join(f"{_WORDS[each]}s as {_USUAL[each]}" for each in media)
    return f"; its {named} {'is' if len(suffixes) == 1 else 'are'} not read: write {kinds}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
