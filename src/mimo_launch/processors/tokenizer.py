"""The settings of the tokenizer in a Hugging Face folder, without running it.

Decides: which files hold the vocabulary, the special tokens and the chat template.
Relies on: tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja,
as transformers 4 and 5 write them.
Leaves: text around images to `image_texts`, token ids of texts to `data.samples.text_tokens`.
"""

from functools import lru_cache
from pathlib import Path

from mimo_launch.processors.files import (
    PROCESSOR,
    SETTINGS,
    SPECIALS,
    TOKENIZER,
    TokenizerError,
    json_object,
    processor_class,
)
from mimo_launch.spec.base import MAX_COUNT
from mimo_launch.spec.files import MEGABYTE, read_small

CHAT_TEMPLATE, OLD_CHAT_TEMPLATE = "chat_template.jinja", "chat_template.json"
# More templates, by name: a folder of files, each NAME.jinja.
MORE_TEMPLATES = "additional_chat_templates"
# The usual template, and the one for conversations with tools, if there is one.
DEFAULT, FOR_TOOLS = "default", "tool_use"
# The template for conversations with videos, where a processor has a separate one.
FOR_VIDEOS = "videos"
# By class of the processor: the template for conversations with videos, whatever the folder's is.
_VIDEO_TEMPLATES = {
    "SmolVLM": "<|im_start|>{% for message in messages %}{{ message.role | capitalize }}:"
    "{% set parts = message.content %}{% if parts is string %} {{ parts }}{% else %}"
    "{{ ' ' if parts[0].type != 'image' }}{% for part in parts %}"
    "{{ {'text': part.text, 'image': '<image>', 'video': '<video>'}.get(part.type, '') }}"
    "{% endfor %}{% endif %}<end_of_utterance>\n{% endfor %}"
    "{{ 'Assistant:' if add_generation_prompt }}",
}
# By class of the processor: the template of a folder that has none. That of PaliGemma is what its
# processor makes of a prompt, with a first token after the last image, and of a suffix.
_OWN_TEMPLATES = {
    "PaliGemma": "{% if messages | length > 2 or messages[0].role != 'user' %}"
    "{{ raise_exception('a PaliGemma takes one question and its answer') }}{% endif %}"
    "{% for message in messages %}{% set parts = message.content %}"
    "{% set parts = [{'type': 'text', 'text': parts}] if parts is string else parts %}"
    "{% set seen = namespace(images=0) %}{% for part in parts if part.type == 'image' %}"
    "{% set seen.images = seen.images + 1 %}{% endfor %}"
    "{% set before = namespace(images=0) %}"
    "{% if message.role == 'user' and not seen.images %}{{ bos_token }}{% endif %}"
    "{% for part in parts %}{% if part.type == 'image' %}{{ '<image>' }}"
    "{% set before.images = before.images + 1 %}"
    "{% if before.images == seen.images %}{{ bos_token }}{% endif %}"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{{ '\n' if message.role == 'user' else eos_token }}{% endfor %}",
}
# By class of the processor: its setting that writes a text before each conversation, and the text.
_TEXT_BEFORE = {
    "Janus": (
        "use_default_system_prompt",
        "You are a helpful language and vision assistant. You are able to understand the visual "
        "content that the user provides, and assist the user with a variety of tasks using natural "
        "language.\n\n",
    ),
}


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
    found = json_object(file)
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
    settings = json_object(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    if "added_tokens_decoder" not in settings and (folder / SPECIALS).is_file():
        settings |= json_object(folder / SPECIALS)
    # transformers 5 keeps the tokens for images and other media apart.
    extra = settings.get("extra_special_tokens", settings.get("model_specific_special_tokens"))
    for key, value in {**settings, **(extra if isinstance(extra, dict) else {})}.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            found[key] = text
    return found


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
        source = json_object(file).get("chat_template") if file.is_file() else None
        if isinstance(source, list):
            source = {x.get("name"): x.get("template") for x in source if isinstance(x, dict)}
        named = source if isinstance(source, dict) else {DEFAULT: source}
        found |= {str(name): text for name, text in named.items() if isinstance(text, str)}
    if DEFAULT not in found and (own := _OWN_TEMPLATES.get(processor_class(folder))) is not None:
        found[DEFAULT] = own
    found.pop(FOR_VIDEOS, None)
    if DEFAULT in found and (own := _VIDEO_TEMPLATES.get(processor_class(folder))) is not None:
        found[FOR_VIDEOS] = own
    asked, text = _TEXT_BEFORE.get(processor_class(folder), ("", ""))
    if asked and (folder / PROCESSOR).is_file() and json_object(folder / PROCESSOR).get(asked):
        return {name: text + source for name, source in found.items()}
    return found
