"""The settings of the tokenizer in a Hugging Face folder, without running it.

Decides: which files hold the vocabulary, the special tokens and the chat template.
Relies on: tokenizer.json, tokenizer_config.json and chat_template.jinja, and the class of the
processor, as transformers 4 and 5 write them.
Leaves: token ids of texts to `data.webdataset.text_tokens`.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from mimo_launch.spec.base import MAX_COUNT
from mimo_launch.spec.files import MEGABYTE, read_json, read_small

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
CHAT_TEMPLATE, OLD_CHAT_TEMPLATE = "chat_template.jinja", "chat_template.json"
# More templates, by name: a folder of files, each NAME.jinja.
MORE_TEMPLATES = "additional_chat_templates"
# The usual template, and the one for conversations with tools, if there is one.
DEFAULT, FOR_TOOLS = "default", "tool_use"
# The template for conversations with videos, where a processor has a separate one.
FOR_VIDEOS = "videos"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
VIDEO_PREPROCESSOR = "video_preprocessor_config.json"
# The text that processors write around the rows of an image: by class, the special token of an
# image in a conversation, and its replacement.
_IDEFICS = "image_token", "{fake_image_token}<global-img>{image_token}{fake_image_token}"
_AROUND_IMAGES: dict[str, tuple[str, str]] = {
    "Gemma3": ("boi_token", "\n\n{boi_token}{image_token}{eoi_token}\n\n"),
    "Idefics3": _IDEFICS,
    "InternVL": (
        "context_image_token", "{start_image_token}{context_image_token}{end_image_token}",
    ),
    "NemotronH_Omni_Reasoning_V3": (
        "image_token", "{image_start_token}{image_token}{image_end_token}",
    ),
    "Pixtral": ("image_token", "{image_token}{image_end_token}"),
    "SmolVLM": _IDEFICS,
}  # fmt: skip
# The same for an image in tiles, if they write more than a token for each: the text of a tile, of
# the end of a line of tiles, and before the text of the whole image, which is the last tile.
_IDEFICS_TILES = "{fake_image_token}<row_{line}_col_{column}>{image_token}", "\n", "\n"
_AROUND_TILES = {"Idefics3": _IDEFICS_TILES, "SmolVLM": _IDEFICS_TILES}
# Their templates for conversations with videos, whatever the template of the folder.
_VIDEO_TEMPLATES = {
    "SmolVLM": "<|im_start|>{% for message in messages %}{{ message.role | capitalize }}:"
    "{% set parts = message.content %}{% if parts is string %} {{ parts }}{% else %}"
    "{{ ' ' if parts[0].type != 'image' }}{% for part in parts %}"
    "{{ {'text': part.text, 'image': '<image>', 'video': '<video>'}.get(part.type, '') }}"
    "{% endfor %}{% endif %}<end_of_utterance>\n{% endfor %}"
    "{{ 'Assistant:' if add_generation_prompt }}",
}
# Their token between two lines of rows.
_BETWEEN_LINES = {"Pixtral": "image_break_token"}
# Their settings for special tokens, with the defaults.
_IDEFICS_TOKENS = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
_OWN_TOKENS = {
    "Idefics3": _IDEFICS_TOKENS,
    "NemotronH_Omni_Reasoning_V3": {
        "image_token": "<image>", "image_start_token": "<img>", "image_end_token": "</img>",
    },
    "Pixtral": {
        "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
    },
    "SmolVLM": _IDEFICS_TOKENS,
}  # fmt: skip


class TokenizerError(ValueError):
    """A folder holds no usable tokenizer; the message is one line."""


def num_tokens(folder: Path) -> int:
    """Return one more than the largest id of the tokenizer in a folder. Raises: TokenizerError."""
    return _vocabulary(folder)[0]


def token_text(folder: Path, token: int) -> str | None:
    """Return the added token with an id, None if there is none. Raises: TokenizerError."""
    return _vocabulary(folder)[1].get(token)


def token_id(folder: Path, text: str) -> int | None:
    """Return the id of an added token, None if there is none. Raises: TokenizerError."""
    added = _vocabulary(folder)[1]
    return next((token for token, content in added.items() if content == text), None)


def _vocabulary(folder: Path) -> tuple[int, dict[int, str]]:
    """Return the number of ids, and the added tokens by id."""
    file = folder / TOKENIZER
    try:
        changed = file.stat().st_mtime_ns
    except OSError as error:
        raise TokenizerError(f"it has no {TOKENIZER}") from error
    return _read_vocabulary(file, changed)


@lru_cache(maxsize=4)
def _read_vocabulary(file: Path, changed: int) -> tuple[int, dict[int, str]]:
    del changed  # Only part of the cache key.
    found = _read(file)
    try:
        vocab = found["model"]["vocab"]
        # A unigram vocabulary is a list in the order of ids.
        last = max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1
        added = {int(token["id"]): str(token["content"]) for token in found.get("added_tokens", ())}
        size = 1 + max(last, max(added, default=-1))
        if not 0 <= size <= MAX_COUNT:
            raise ValueError(f"the largest id is {size - 1}")
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise TokenizerError(f"{TOKENIZER} cannot be used: {error!r}") from error
    return size, added


def special_texts(folder: Path) -> dict[str, str]:
    """Return the special tokens by name, such as `eos_token`. Raises: TokenizerError."""
    found: dict[str, str] = {}
    settings = _read(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    # transformers 5 keeps the tokens for images and other media apart.
    extra = settings.get("extra_special_tokens", settings.get("model_specific_special_tokens"))
    for key, value in {**settings, **(extra if isinstance(extra, dict) else {})}.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            found[key] = text
    return found


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


def tile_texts(folder: Path) -> tuple[str, str, str] | None:
    """Return the model's texts for an image in tiles, if they are more than a token for each.

    These are the text of a tile, with fields `line` and `column`; the end of a line of tiles; and
    the text before the whole image, which is the last tile. The class of the folder's processor
    decides them. Raises: TokenizerError.
    """
    name, specials = _of_processor(folder)
    if (found := _AROUND_TILES.get(name)) is None:
        return None
    # Braces of a special token do not mark a field.
    safe = {key: text.replace("{", "{{").replace("}", "}}") for key, text in specials.items()}
    try:
        return found[0].format(**{**safe, "line": "{line}", "column": "{column}"}), *found[1:]
    except KeyError:
        return None  # A tokenizer of another model.


def processor_class(folder: Path) -> str:
    """Return the class of a folder's processor, without `Processor`; "" if none is named.

    Raises: TokenizerError.
    """
    files = [folder / name for name in (PROCESSOR, PREPROCESSOR, SETTINGS)]
    settings = [_read(file) for file in files if file.is_file()]
    classes = (each.get("processor_class") for each in settings)
    return str(next((each for each in classes if each is not None), "")).removesuffix("Processor")


def _of_processor(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the class of the processor, without `Processor`, and the special tokens by name."""
    name = processor_class(folder)
    specials = special_texts(folder) if name in _AROUND_IMAGES else {}
    usual = _OWN_TOKENS.get(name, {})
    said = _read(folder / PROCESSOR) if usual and (folder / PROCESSOR).is_file() else {}
    own = {key: str(said.get(key, text)) for key, text in usual.items()}
    # A tokenizer of another model has none of them.
    known = {key: text for key, text in own.items() if token_id(folder, text) is not None}
    return name, specials | known


def chat_sources(folder: Path) -> dict[str, str]:
    """Return the chat templates of a folder by name. Raises: TokenizerError."""
    found: dict[str, str] = {}
    for file in (folder / CHAT_TEMPLATE, *sorted((folder / MORE_TEMPLATES).glob("*.jinja"))):
        name = DEFAULT if file.parent == folder else file.stem
        try:
            found[name] = read_small(file, MEGABYTE).decode("utf-8")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise TokenizerError(f"{file.name} cannot be read: {error}") from error
    for file in (folder / SETTINGS, folder / OLD_CHAT_TEMPLATE):
        if DEFAULT in found:
            break
        source = _read(file).get("chat_template") if file.is_file() else None
        if isinstance(source, list):
            source = {x.get("name"): x.get("template") for x in source if isinstance(x, dict)}
        named = source if isinstance(source, dict) else {DEFAULT: source}
        found |= {str(name): text for name, text in named.items() if isinstance(text, str)}
    found.pop(FOR_VIDEOS, None)
    if DEFAULT in found and (own := _VIDEO_TEMPLATES.get(processor_class(folder))) is not None:
        found[FOR_VIDEOS] = own
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise TokenizerError(f"{file.name} is not a JSON object")
    return found
