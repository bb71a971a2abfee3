"""Samples as tokens: the tokenizer of a Hugging Face folder, what is learnt, where images stand.

Decides: that a caption is learnt with its end token, and of a conversation the answers with the
token that ends each turn; which token marks an image or a clip.
Relies on: the `tokenizers` library for ids, equal to those of transformers' `apply_chat_template`.
Leaves: rows of images to `spans`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer

from mimo_launch.layout.tokenizers import TOKENIZER, TokenizerError, chat_source, special_texts
from mimo_launch.layout.tokens import placeholder_id
from mimo_launch.spec.model import CaptionTemplate, ChatTemplate, Spec, WebdatasetData
from mimo_launch.train.data.dataset import BadSample
from mimo_launch.train.data.webdataset.chat import ChatFormat, TemplateRefused
from mimo_launch.train.data.webdataset.decode import Medium
from mimo_launch.train.data.webdataset.records import Record
from mimo_launch.train.data.webdataset.spans import Intake

_WORDS: dict[Medium, str] = {"image": "image", "audio": "clip"}
_USUAL: dict[Medium, str] = {"image": ".png or .jpg", "audio": ".wav or .flac"}


@dataclass(frozen=True, slots=True)
class Written:
    """The text tokens of a sample [n], which of them are learnt, and what stands between them.

    `media` are images and clips in order, each with the number of text tokens before it.
    """

    tokens: npt.NDArray[np.int64]
    learnt: npt.NDArray[np.bool_]
    media: tuple[tuple[int, Medium], ...]


class Writer:
    """Writes samples as tokens, for one tokenizer, template and set of encoders."""

    def __init__(self, spec: Spec, data: WebdatasetData, intakes: tuple[Intake, ...]) -> None:
        """Load the tokenizer.

        Raises:
            TokenizerError: The folder has no tokenizer that can be used.
            TemplateRefused: Its chat template cannot be used with these encoders.
        """
        folder = Path(data.tokenizer)
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:  # The library raises nothing narrower.
            raise TokenizerError(f"{folder / TOKENIZER} cannot be read: {error}") from error
        # Saved settings of whoever called the tokenizer last, not of the model.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        specials = special_texts(folder)
        self._template = data.template
        self._chat: ChatFormat | None = None
        if isinstance(data.template, ChatTemplate):
            source = chat_source(folder)
            if source is None:
                raise TemplateRefused(f"{folder} has no chat template")
            self._chat = ChatFormat(source, specials)
        self._end = self._tokenizer.token_to_id(specials.get("eos_token", ""))
        probe = self._tokenizer.encode("")
        self._start = [
            token
            for token, is_special in zip(probe.ids, probe.special_tokens_mask, strict=True)
            if is_special and token != self._end
        ][:1]
        self._markers = self._find_markers(spec, data, intakes)
        ids = {medium: self._tokenizer.token_to_id(text) for medium, text in self._markers.items()}
        self._ids = {token: medium for medium, token in ids.items() if token is not None}
        if len(self._ids) < len(self._markers):
            raise TemplateRefused("images and clips have the same marker")
        added = self._tokenizer.get_added_tokens_decoder()
        self._specials = frozenset(token for token, kind in added.items() if kind.special)

    @property
    def markers(self) -> Mapping[Medium, str]:
        """The token in whose place the rows of an image or a clip come."""
        return self._markers

    def write(
        self, record: Record, members: Mapping[Medium, int], unread: Sequence[str] = ()
    ) -> Written:
        """Return a sample as tokens.

        Args:
            record: What it says.
            members: Numbers of its images and clips.
            unread: Suffixes of members that are neither text nor these: where one of these is
                missing, they may be what was meant.

        Raises:
            BadSample: Markers and members do not agree, or nothing in it can be learnt.
        """
        for medium, count in members.items():
            if count and medium not in self._markers:
                word = _WORDS[medium]
                raise BadSample(f"it has {_count(count, word)}, and no encoder reads any")
        if isinstance(self._template, CaptionTemplate):
            if self._markers and unread and not any(members.values()):
                raise BadSample(f"it has nothing to be a caption of{_unread(unread, *_USUAL)}")
            written = self._caption(self._template, record, members)
        else:
            written = self._conversation(record, members, unread)
        if not written.learnt.any():
            raise BadSample("it has no token to learn")
        return written

    def _caption(
        self, template: CaptionTemplate, record: Record, members: Mapping[Medium, int]
    ) -> Written:
        text = template.prompt + record.caption
        tokens, learnt = self._encode(text, [(len(template.prompt), len(text))])
        end = [] if self._end is None else [self._end]
        media = [
            each for medium, n in sorted(members.items(), reverse=True) for each in [medium] * n
        ]
        if any(token in self._ids for token in tokens):
            raise BadSample("its text has a token that stands for images")
        return Written(
            np.array([*self._start, *tokens, *end], dtype=np.int64),
            np.array([*[False] * len(self._start), *learnt, *[True] * len(end)]),
            tuple((len(self._start), medium) for medium in media),
        )

    def _conversation(
        self, record: Record, members: Mapping[Medium, int], unread: Sequence[str]
    ) -> Written:
        if self._chat is None:
            raise TypeError("a conversation needs a chat template")
        asked = Counter(record.media())
        for medium, word in _WORDS.items():
            have, want = members.get(medium, 0), asked[medium]
            if have != want:
                hint = _unread(unread, medium) if have < want else ""
                raise BadSample(
                    f"it has {_count(have, word)} and {_count(want, 'marker')} for them{hint}"
                )
        text, answers = self._chat.answers(record.messages, dict(self._markers))
        tokens, learnt = self._encode(text, answers, ends=not self._chat.marks_answers)
        found = tuple(self._ids[token] for token in tokens if token in self._ids)
        if found != record.media():
            raise BadSample(
                f"the chat template writes {_count(len(found), 'marker')} for "
                f"{len(record.media())}: its text has a token that stands for images"
            )
        places = [place for place, token in enumerate(tokens) if token in self._ids]
        is_text = np.ones(len(tokens), dtype=np.bool_)
        is_text[places] = False
        media = tuple((place - i, found[i]) for i, place in enumerate(places))
        ids = np.array(tokens, dtype=np.int64)
        return Written(ids[is_text], np.array(learnt)[is_text], media)

    def _encode(
        self, text: str, learn: list[tuple[int, int]], *, ends: bool = False
    ) -> tuple[list[int], list[bool]]:
        """Return the tokens of a text, and which of them have a character that is learnt.

        With `ends`, the special token behind each such part is learnt as well.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadSample(f"its text has half a surrogate pair: {error.reason}") from error
        try:
            encoded = self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:  # The library raises nothing narrower.
            raise BadSample(f"the tokenizer refuses its text: {error}") from error
        ids, offsets = encoded.ids, np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2)
        learnt = np.zeros(len(ids), dtype=np.bool_)
        for first, last in learn:
            learnt |= (offsets[:, 0] < last) & (offsets[:, 1] > first)
            if ends:
                begin = after = int(np.searchsorted(offsets[:, 0], last))
                while after < len(ids) and text[slice(*offsets[after])].isspace():
                    after += 1
                if after < len(ids) and ids[after] in self._specials:
                    learnt[begin : after + 1] = True
        return ids, learnt.tolist()

    def _find_markers(
        self, spec: Spec, data: WebdatasetData, intakes: tuple[Intake, ...]
    ) -> dict[Medium, str]:
        """Return the token of each medium that an encoder reads; unknown ones become tokens."""
        usual: dict[Medium, str] = {"image": data.image_marker, "audio": data.audio_marker}
        found: dict[Medium, str] = {}
        added = self._tokenizer.get_added_tokens_decoder()
        for intake in reversed(intakes):  # The first encoder of a medium has the last word.
            own = added.get(placeholder_id(spec, intake.encoder))
            found[intake.medium] = (
                own.content if own else self._in_template(intake) or usual[intake.medium]
            )
        for text in found.values():
            self._tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)])
        return found

    def _in_template(self, intake: Intake) -> str | None:
        """Return the one token that the chat template writes for an image or a clip."""
        text = None if self._chat is None else self._chat.media_text(intake.medium)
        if text is None:
            return None
        added = self._tokenizer.get_added_tokens_decoder()
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        named = [added[token].content for token in tokens if token in added]
        if len(named) > 1:
            raise TemplateRefused(
                f"for {'an image' if intake.medium == 'image' else 'a clip'} it writes "
                f"{' '.join(named)}; say which of them the rows of {intake.encoder} replace, with "
                f"`placeholder: ID` in its module"
            )
        return named[0] if named else text.strip() or None


def learnt_among(
    learnt: npt.NDArray[np.bool_], is_row: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which tokens of a sample are learnt, bool [tokens], from which text tokens are.

    The first token is not: nothing predicts it.
    """
    found = np.zeros(len(is_row), dtype=np.bool_)
    found[~is_row] = learnt
    found[:1] = False
    return found


def _unread(suffixes: Sequence[str], *media: Medium) -> str:
    """Return what to do about members that are not read, if there are any."""
    if not suffixes:
        return ""
    named = ", ".join(f".{each}" for each in suffixes)
    kinds = " and ".join(f"{_WORDS[each]}s as {_USUAL[each]}" for each in media)
    return f"; its {named} {'is' if len(suffixes) == 1 else 'are'} not read: write {kinds}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
