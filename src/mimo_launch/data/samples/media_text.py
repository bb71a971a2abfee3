"""The text of media: the token of each medium, and the text of a medium in several parts.

Decides: that the token is the one that the spec names, else the one that the chat template writes,
else the one in `data`; the text of an image in tiles, and that learned spans move with the text.
Relies on: `chat_template` for a template's text of media, `processors.tokenizer` for a
processor's.
Leaves: the words for videos to `video_words`, rows to `media_rows`, tokens to `sample_encoder`.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.chat_template import ChatFormats
from mimo_launch.data.samples.decode_media import Marker, Medium
from mimo_launch.data.samples.media_rows import ShardInputs
from mimo_launch.data.samples.template_program import Spans, TemplateRefused
from mimo_launch.data.samples.text_tokens import add_token, without_panic
from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.vocabulary import placeholder_id
from mimo_launch.processors.image_texts import image_text, slice_texts, tile_texts
from mimo_launch.spec.spec import Spec, UserData


class MarkerUnclear(TemplateRefused):
    """The chat template writes several tokens for an image or a clip of a module.

    `tokens` are their ids and texts; the middle one most likely marks the rows.
    """

    def __init__(self, module: str, medium: Medium, tokens: list[tuple[int, str]]) -> None:
        super().__init__(
            f"for {'an image' if medium == 'image' else 'a clip'} it writes "
            f"{' '.join(text for _, text in tokens)}; say which of them the rows of {module} "
            f"replace, with `placeholder: ID` in its module"
        )
        self.module, self.likely = module, tokens[len(tokens) // 2]


def find_markers(
    spec: Spec,
    data: UserData,
    inputs: ShardInputs,
    tokenizer: Tokenizer,
    chat: ChatFormats | None,
) -> dict[Marker, str]:
    """Return the token of each medium that is read, and of targets.

    Tokens that the tokenizer does not have are added to it. Raises: TemplateRefused.
    """
    usual: dict[Medium, str] = {
        "image": data.image_marker,
        "audio": data.audio_marker,
        "video": data.video_marker,
    }
    found: dict[Marker, str] = {"target": data.target_marker} if inputs.makes else {}
    added = tokenizer.get_added_tokens_decoder()
    # Reversed, so that the first module of a medium decides.
    for name, media in reversed(inputs.in_text.items()):
        for medium in media:
            # Videos have their own token in the text.
            own = added.get(placeholder_id(spec, name)) if medium != "video" else None
            text = own.content if own else _in_template(name, medium, tokenizer, chat)
            found[medium] = text or usual[medium]
    for text in found.values():
        if add_token(tokenizer, text) is None:
            raise TemplateRefused(
                f"of its tokenizer: the vocabulary has gaps, so a token for `{text}` would get the "
                "id of another one; add it to `added_tokens` of tokenizer.json"
            )
    return found


def _in_template(
    module: str, medium: Medium, tokenizer: Tokenizer, chat: ChatFormats | None
) -> str | None:
    """Return the one token that the chat template writes for an image or a clip."""
    text = None if chat is None else chat.media_text(medium)
    if chat is None or text is None:
        return None
    added = tokenizer.get_added_tokens_decoder()
    try:
        tokens = without_panic(partial(tokenizer.encode, text, add_special_tokens=False)).ids
    except Exception as error:  # The library raises nothing narrower.
        raise TemplateRefused(f"its tokenizer refuses `{text.strip()}`: {error}") from error
    known = [(token, added[token].content) for token in tokens if token in added]
    named = [content for _, content in known]
    if medium == "video" and len(named) > 1:
        # A video's token may be surrounded by the same tokens as an image.
        with suppress(TemplateRefused):
            image = chat.media_text("image")
            named = [each for each in named if each not in (image or "")]
        # Or by two tokens that only a video has.
        if len(named) in (1, 3):
            return str(named[len(named) // 2])
        raise TemplateRefused(
            f"for a video it writes `{text.strip()}`, in which not one token but "
            f"{len(named)} differ from what it writes for an image"
        )
    if len(named) > 1:
        raise MarkerUnclear(module, medium, known)
    return named[0] if named else text.strip() or None


@frozen
class TileText:
    """The text of an image: `whole` for an image that is not cut, the rest for an image in tiles.

    Each tile has the token that its rows replace; `tile` is a format with its line and column.
    `between` is the text between two tiles of a line.
    """

    whole: str
    begins: str
    tile: str
    between: str
    line_end: str
    last: str

    def written(self, told: Sequence[int], number: int) -> str:
        """Return the text of an image; `told` has the columns of its grid once per part.

        `number` says how many images are before it in the sample.
        """
        del number
        if len(told) == 1:
            return self.whole
        wide = told[0]
        found = [self.begins]
        for line, column in product(range((len(told) - 1) // wide), range(wide)):
            found.append(self.tile.format(line=line + 1, column=column + 1))
            found.append(self.line_end if column + 1 == wide else self.between)
        return "".join([*found, self.last])


@frozen
class SliceText:
    """The text of an image that precedes its slices: `begins` is a format with its number.

    `whole` is what a chat template writes for it.
    """

    whole: str
    begins: str
    tile: str

    def written(self, told: Sequence[int], number: int) -> str:
        """Return the text of an image, as `TileText` does."""
        wide = told[0]
        lines = "\n".join([self.tile * wide] * ((len(told) - 1) // wide))
        return self.begins.format(number=number) + lines


def tile_text(folder: Path, marker: str) -> TileText | SliceText:
    """Return the text of the processor in a tokenizer's folder; without one, a marker per tile.

    Raises: TokenizerError.
    """
    if (slices := slice_texts(folder)) is not None:
        return SliceText(marker, *slices)
    around, texts = image_text(folder), tile_texts(folder)
    whole = marker if around is None else around[1]
    if texts is not None:
        return TileText(whole, *texts)
    # The text around an image also surrounds its tiles.
    begins, _, ends = whole.partition(marker)
    escaped = marker.replace("{", "{{").replace("}", "}}")
    return TileText(whole, begins, escaped, "", "", marker + ends)


def with_parts(
    text: str, learn: Spans, whole: str, written: Sequence[str], medium: str
) -> tuple[str, Spans]:
    """Return a text with the text of each medium replaced, and its learned spans.

    Args:
        text: The text, with `whole` for each medium.
        learn: Start and end of each learned span.
        whole: The text to replace.
        written: The replacement for each medium.
        medium: The word for a medium in messages.

    Raises:
        BadSample: The text has more or fewer media than `written`.
    """
    pieces = text.split(whole)
    if len(pieces) <= len(written):
        raise BadSample(
            f"the chat template writes {len(pieces) - 1} tokens for {medium}s, and the sample has "
            f"{len(written)}: take the tokenizer of a model that reads {medium}s"
        )
    if len(pieces) != len(written) + 1:
        raise BadSample(
            f"the markers of {medium}s in its text are {len(pieces) - 1}, and its {medium}s "
            f"{len(written)}: its text has a token that stands for a {medium}"
        )
    ends: list[int] = []
    made, at = [pieces[0]], len(pieces[0])
    for piece, new in zip(pieces[1:], written, strict=True):
        made += [new, piece]
        at += len(whole)
        ends.append(at)
        at += len(piece)

    def moved(at: int) -> int:
        longer = zip(ends, written, strict=True)
        return at + sum(len(new) - len(whole) for end, new in longer if end <= at)

    return "".join(made), [(moved(first), moved(last)) for first, last in learn]
