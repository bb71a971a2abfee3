"""The text around the rows of an image, by the class of the folder's processor.

Decides: the tokens before, between and after rows of an image or its tiles.
Relies on: `processor_config.json` and the tokenizer's special tokens.
Leaves: the times of a video's frames to `video_words`; places in a text to `data.samples`.
"""

from pathlib import Path

from mimo_launch.processors.files import (
    PREPROCESSOR,
    PROCESSOR,
    json_object,
    processor_class,
    settings_of,
)
from mimo_launch.processors.tokenizer import special_texts, token_id

# The text that processors write around the rows of an image: by class, the special token of an
# image in a conversation, and its replacement.
_GEMMA = "boi_token", "\n\n{boi_token}{image_token}{eoi_token}\n\n"
_IDEFICS = "image_token", "{fake_image_token}<global-img>{image_token}{fake_image_token}"
# A text of a conversation that need not be a token.
_PLAIN = "image_placeholder_token"
_AROUND_IMAGES: dict[str, tuple[str, str]] = {
    "Gemma3": _GEMMA,
    "Gemma4": ("image_token", "{boi_token}{image_token}{eoi_token}"),
    "Idefics3": _IDEFICS,
    "InternVL": (
        "context_image_token", "{start_image_token}{context_image_token}{end_image_token}",
    ),
    "Janus": ("image_token", "{boi_token}{image_token}{eoi_token}"),
    "Llama4": (_PLAIN, "<|image_start|><|image|><|patch|><|image_end|>"),
    "NemotronH_Omni_Reasoning_V3": (
        "image_token", "{image_start_token}{image_token}{image_end_token}",
    ),
    # All that its processor writes are rows.
    "Ovis2": (_PLAIN, "<IMG_ATOM>"),
    "Pixtral": ("image_token", "{image_token}{image_end_token}"),
    "QianfanOCR": (
        _PLAIN, "{start_image_token}{context_image_token}{end_image_token}",
    ),
    "ShieldGemma2": _GEMMA,
    "SmolVLM": _IDEFICS,
}  # fmt: skip
# The same for an image in tiles, if they write more than a token for each: the text before all, of
# a tile, between two tiles of a line, of the end of a line, and of the whole image, which is last.
_IDEFICS_TILES = (
    "", "{fake_image_token}<row_{line}_col_{column}>{image_token}", "", "\n", "\n" + _IDEFICS[1],
)  # fmt: skip
_AROUND_TILES = {
    "Idefics3": _IDEFICS_TILES,
    "Llama4": (
        "<|image_start|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>",
        "<|image|><|patch|><|image_end|>",
    ),
    "SmolVLM": _IDEFICS_TILES,
}  # fmt: skip
# Of those that write the whole image first: the text of it, before it the number of the image in
# the conversation if `use_image_id` says so, and the text of a slice.
_SLICES = (
    "{image_id_start_token}{number}{image_id_end_token}",
    "{image_start_token}{image_token}{image_end_token}",
    "{slice_start_token}{image_token}{slice_end_token}",
)
_SLICING = ("MiniCPMOcr", "MiniCPMV4_6", "MiniCPMV4_7")
# Their token between two lines of rows.
_BETWEEN_LINES = {"Pixtral": "image_break_token"}
# Their settings for special tokens, with the defaults.
_IDEFICS_TOKENS = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
_OWN_TOKENS = {
    "Idefics3": _IDEFICS_TOKENS,
    "Llama4": {_PLAIN: "<|image|>"},
    "NemotronH_Omni_Reasoning_V3": {
        "image_token": "<image>", "image_start_token": "<img>", "image_end_token": "</img>",
    },
    "Ovis2": {_PLAIN: "<image>"},
    "Pixtral": {
        "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
    },
    "QianfanOCR": {_PLAIN: "<image>"},
    "SmolVLM": _IDEFICS_TOKENS,
}  # fmt: skip


def image_text(folder: Path) -> tuple[str, str] | None:
    """Return the text for an image in a chat template, and its replacement in the model's input.

    None if both are the same. The replacement contains the one token that rows replace. The class
    of the folder's processor decides both. Raises: TokenizerError.
    """
    name, specials = _of_processor(folder)
    if (found := _AROUND_IMAGES.get(name)) is None:
        return None
    try:
        return specials[found[0]], found[1].format(**specials)
    except KeyError:
        return None  # A tokenizer of another model.


def line_break(folder: Path) -> str | None:
    """Return the token between two lines of the rows of an image, if there is one.

    The class of the folder's processor decides it. Raises: TokenizerError.
    """
    name, specials = _of_processor(folder)
    return specials.get(_BETWEEN_LINES.get(name, ""))


def tile_texts(folder: Path) -> tuple[str, ...] | None:
    """Return the model's texts for an image in tiles, if they are more than a token for each.

    These are the text before all; that of a tile, with fields `line` and `column`; between two
    tiles of a line; the end of a line; and the text of the whole image, which is the last tile. The
    class of the folder's processor decides them. Raises: TokenizerError.
    """
    name, specials = _of_processor(folder)
    if (found := _AROUND_TILES.get(name)) is None:
        return None
    # Braces of a special token do not mark a field.
    safe = {key: text.replace("{", "{{").replace("}", "}}") for key, text in specials.items()}
    try:
        begins, _, *others = (each.format(**specials) for each in (found[0], "", *found[2:]))
        tile = found[1].format(**{**safe, "line": "{line}", "column": "{column}"})
        return begins, tile, *others
    except KeyError:
        return None  # A tokenizer of another model.


def slice_texts(folder: Path) -> tuple[str, str] | None:
    """Return the model's texts for a whole image, with a field `number`, and for a slice of it.

    The class of the folder's processor decides them. Raises: TokenizerError.
    """
    name, specials = _of_processor(folder)
    if name not in _SLICING:
        return None
    said = (settings_of(folder, "image_processor", (PREPROCESSOR,)) or {}).get("use_image_id")
    safe = {key: text.replace("{", "{{").replace("}", "}}") for key, text in specials.items()}
    try:
        number, whole, part = (each.format(**{**safe, "number": "{number}"}) for each in _SLICES)
    except KeyError:
        return None  # A tokenizer of another model.
    return number * (said is None or bool(said)) + whole, part.format()


def _of_processor(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the class of the processor, without `Processor`, and the special tokens by name."""
    name = processor_class(folder)
    specials = special_texts(folder) if name in (*_AROUND_IMAGES, *_SLICING) else {}
    usual = _OWN_TOKENS.get(name, {})
    said = json_object(folder / PROCESSOR) if usual and (folder / PROCESSOR).is_file() else {}
    own = {key: str(said.get(key, text)) for key, text in usual.items()}
    # A tokenizer of another model has none of them.
    known = {
        key: text
        for key, text in own.items()
        if key == _PLAIN or token_id(folder, text) is not None
    }
    return name, specials | known
