"""Real shards and tokenizer folders for tests: files as users bring them, made on the spot."""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

# Chat templates of the usual shapes: Qwen's, with text or parts, and Llama 2's.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PARTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'audio' %}<|audio_pad|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)
# As LLaVA 1.5: content is a list of parts, images first; no token ends a turn.
LISTS = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ part['text'] + ' ' }}"
    "{% endgeneration %}{% else %}{{ part['text'] + ' ' }}{% endif %}{% endfor %}{% endfor %}"
)
LLAMA2 = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'system' %}{{ '<<SYS>>' + message['content'] + '<</SYS>>' }}"
    "{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GENERATION = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "ASSISTANT: {% generation %}{{ message['content'] | trim }}</s>{% endgeneration %}\n"
    "{% else %}USER: {{ message['content'] | trim }}\n{% endif %}{% endfor %}"
)
# As Qwen3 does: only the last answer has a block of thoughts, which nobody wrote.
THOUGHTS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message['content'].lstrip('\n') }}<|im_end|>\n{% endfor %}"
)
SPECIALS = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|image_pad|>",
    "<|vision_end|>",
    "<|audio_pad|>",
)
_TEXT = (
    "a photograph of the dog beside two cats, seen from the window of a train",
    "What is in this image? The image shows a small red house on a green hill.",
    "user assistant system [INST] [/INST] USER: ASSISTANT: 0 1 2 3 4 5 6 7 8 9",
)


def tokenizer_folder(
    folder: Path, template: str = CHATML, *, vocab: int = 384, specials: tuple[str, ...] = ()
) -> Path:
    """Make a Hugging Face folder with a byte-level BPE tokenizer and a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIALS) - len(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(each, normalized=False) for each in (*specials, *SPECIALS)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": {"content": "</s>", "__type": "AddedToken"},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def image_bytes(height: int, width: int, seed: int = 0, kind: str = "PNG") -> bytes:
    """An image of random blocks, encoded."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 255, (-(-height // 4), -(-width // 4), 3), dtype=np.uint8)
    pixels = small.repeat(4, axis=0).repeat(4, axis=1)[:height, :width]
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format=kind)
    return out.getvalue()


def clip_bytes(samples: int, rate: int = 16_000, seed: int = 0, kind: str = "WAV") -> bytes:
    """A clip of noise, encoded."""
    import soundfile

    noise = np.random.default_rng(seed).uniform(-0.5, 0.5, samples).astype(np.float32)
    out = io.BytesIO()
    soundfile.write(out, noise, rate, format=kind)
    return out.getvalue()


def write_image_shard(
    path: Path,
    samples: Sequence[Sequence[tuple[int, int]]],
    conversation: Callable[[int, str], list[dict[str, Any]]],
) -> None:
    """Write a shard of samples, each with images of these sizes.

    `conversation(images, answer)` is what is said about them.
    """
    made = []
    for number, sizes in enumerate(samples):
        chat = conversation(len(sizes), f"A dog, {number}.")
        members: dict[str, Any] = {"json": {"messages": chat}}
        for place, size in enumerate(sizes):
            members[f"{place}.png"] = image_bytes(*size, seed=10 * number + place)
        made.append((f"{number:03d}", members))
    write_shard(path, made)


def shard_data(folder: Path, tokenizer: Path | str | None = None, **data: Any) -> dict[str, Any]:
    """Return the `data` of a spec over the shards of a folder, by default with its tokenizer."""
    return {
        "kind": "webdataset",
        "shards": str(folder / "*.tar"),
        "tokenizer": str(tokenizer or folder / "tokenizer"),
        "template": "chat",
        **data,
    }


def write_shard(path: Path, samples: Iterable[tuple[str, dict[str, Any]]]) -> Path:
    """Write a shard with the webdataset library; members are bytes, or objects to be encoded."""
    from webdataset import TarWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, TarWriter(file, mtime=0) as writer:
        for key, members in samples:
            writer.write({"__key__": key, **members})
    return path


def sample(number: int) -> dict[str, Any]:
    """Members of a sample: none to three images of its own sizes, and a conversation of them."""
    random = np.random.default_rng(number)
    members: dict[str, Any] = {}
    num_images = int(random.integers(0, 4)) if number % 5 else 0
    for image in range(num_images):
        height, width = (int(each) for each in random.integers(6, 40, 2))
        kind = ("PNG", "JPEG", "WEBP")[(number + image) % 3]
        suffix = kind.lower() if image == 0 else f"{image}.{kind.lower()}"
        members[suffix] = image_bytes(height, width, number, kind)
    asked = "<image>" * num_images + f"\nWhat is number {number}?"
    said = "It is " + " ".join(str(number)) + "."
    members["json"] = {
        "conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]
    }
    return members


def planted(number: int) -> tuple[dict[str, Any], str, bool]:
    """Members of a bad sample, what is said of it, and whether only decoding shows it."""
    good = {"json": {"messages": [{"role": "user", "content": "<image>?"}, _ANSWER]}}
    text = {"json": {"messages": [{"role": "user", "content": "?"}, _ANSWER]}}
    image = image_bytes(96, 128, number, "JPEG")
    cases: list[tuple[dict[str, Any], str, bool]] = [
        ({**good, "jpg": image[: len(image) // 2]}, "truncated", True),
        ({"jpg": image}, "it has no .json", False),
        ({**good, "jpg": b"no image at all"}, "its .jpg cannot be read as an image", False),
        ({**good, "png": _bomb()}, "10000 x 5000 = 50.0 million pixels", False),
        (
            {"json": {"messages": [{"role": "user", "content": "?"}, _answer(" ")]}},
            "no answer of the assistant",
            False,
        ),
        ({"json": b'["no", "object"]'}, "its .json is a list", False),
        ({"json": b'{"messages": ['}, "its .json cannot be read", False),
        ({**text, "jpg": image}, "1 image and 0 markers", False),
        (good, "0 images and 1 marker", False),
        ({"json": {"messages": "hello"}}, "`messages` of its JSON is text", False),
    ]
    return cases[number % len(cases)]


@cache
def _bomb() -> bytes:
    """Fifty million pixels in few bytes."""
    out = io.BytesIO()
    Image.new("L", (10_000, 5_000)).save(out, format="PNG", compress_level=1)
    return out.getvalue()


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


_ANSWER = _answer("Yes.")


def write_shards(folder: Path, *, samples: int, bad: int, shards: int) -> dict[str, str]:
    """Write shards of good samples with bad ones among them; return what is said of each bad key.

    Bad samples are spread evenly; keys say what they are: `000007` and `bad-03`.
    """
    records: list[tuple[str, dict[str, Any]]] = [(f"{n:06d}", sample(n)) for n in range(samples)]
    said = {}
    for number in range(bad):
        members, why, _ = planted(number)
        said[f"bad-{number:02d}"] = why
        records.insert(
            (2 * number + 1) * samples // (2 * bad) + number, (f"bad-{number:02d}", members)
        )
    size = -(-len(records) // shards)
    for number in range(shards):
        here = records[number * size : (number + 1) * size]
        write_shard(folder / f"{number:03d}.tar", here)
    return said
