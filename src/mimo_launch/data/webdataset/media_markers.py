"""Which token of a text stands for an image, a clip or a video, and which for a target.

Decides: that it is the one that the spec names, else the one that the chat template writes, else
the one of `data`.
Relies on: `chat_template` for what a template writes.
Leaves: what takes its place to `media_rows`.
"""

from contextlib import suppress

from tokenizers import AddedToken, Tokenizer

from mimo_launch.data.webdataset.chat_template import ChatFormats, TemplateRefused
from mimo_launch.data.webdataset.decode_media import Marker, Medium
from mimo_launch.data.webdataset.media_rows import ShardInputs
from mimo_launch.kinds.vocabulary import placeholder_id
from mimo_launch.spec.spec import Spec, WebdatasetData


class MarkerUnclear(TemplateRefused):
    """The chat template writes several tokens for an image or a clip of a module.

    `tokens` are their ids and texts; the one in the middle most likely stands for the rows.
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
    data: WebdatasetData,
    inputs: ShardInputs,
    tokenizer: Tokenizer,
    chat: ChatFormats | None,
) -> dict[Marker, str]:
    """Return the token of each medium that is read, and of targets.

    Those that the tokenizer does not have are added to it. Raises: TemplateRefused.
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
            # Videos have a token of their own in the text.
            own = added.get(placeholder_id(spec, name)) if medium != "video" else None
            text = own.content if own else _in_template(name, medium, tokenizer, chat)
            found[medium] = text or usual[medium]
    for text in found.values():
        tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)])
    return found


def _in_template(
    module: str, medium: Medium, tokenizer: Tokenizer, chat: ChatFormats | None
) -> str | None:
    """Return the one token that the chat template writes for an image or a clip."""
    text = None if chat is None else chat.media_text(medium)
    if chat is None or text is None:
        return None
    added = tokenizer.get_added_tokens_decoder()
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    known = [(token, added[token].content) for token in tokens if token in added]
    named = [content for _, content in known]
    if medium == "video" and len(named) > 1:
        # Around it stands what is around an image, too.
        with suppress(TemplateRefused):
            image = chat.media_text("image")
            named = [each for each in named if each not in (image or "")]
        # Or its own, in the middle of what stands around it.
        if len(named) in (1, 3):
            return str(named[len(named) // 2])
        raise TemplateRefused(
            f"for a video it writes `{text.strip()}`, in which not one token but "
            f"{len(named)} differ from what it writes for an image"
        )
    if len(named) > 1:
        raise MarkerUnclear(module, medium, known)
    return named[0] if named else text.strip() or None
