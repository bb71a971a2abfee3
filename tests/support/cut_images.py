"""Folders and specs of models whose processors make several images of one: tiles, and all of it."""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.support.shards import shard_data, tokenizer_folder, write_image_shard
from tests.support.specs import box, spec

from mimo_launch.processors.tokenizer import token_id
from mimo_launch.spec.spec import Spec

SIDE, PATCH, SHUFFLE = 16, 4, 2
IDEFICS_CHAT = (
    "<|im_start|>{% for message in messages %}{{ message.role | capitalize }}"
    "{% if message.content[0].type == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for part in message.content %}{% if part.type == 'image' %}{{ '<image>' }}"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
)
INTERNVL_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}{% if part.type == 'image' %}<IMG_CONTEXT>\n"
    "{% elif part.type == 'video' %}<video>\n{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
)
_IDEFICS = (
    "<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "<row_1_col_1>",
    "<row_1_col_2>", "<row_2_col_1>",
)  # fmt: skip
_MINICPM = {
    "image_token": "<image_pad>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
    "video_token": "<video_pad>",
}
_BOTH_SIDES = {"size": {"height": SIDE, "width": SIDE}, "min_patches": 1, "max_patches": 6}
# Of each family: the class of its images, the settings that differ, its special tokens, the token
# of an image, its chat template.
FAMILIES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], str, str]] = {
    "Idefics3": ("Idefics3", {}, _IDEFICS, "<image>", IDEFICS_CHAT),
    "SmolVLM": ("SmolVLM", {}, _IDEFICS, "<image>", IDEFICS_CHAT),
    "InternVL": (
        "GotOcr2", _BOTH_SIDES, ("<img>", "</img>", "<IMG_CONTEXT>", "<video>"), "<IMG_CONTEXT>",
        INTERNVL_CHAT,
    ),
    # Its template writes a text that is no token.
    "QianfanOCR": (
        "GotOcr2", _BOTH_SIDES, ("<img>", "</img>", "<IMG_CONTEXT>"), "<IMG_CONTEXT>",
        INTERNVL_CHAT.replace("<IMG_CONTEXT>", "<image>"),
    ),
    "MiniCPMV4_6": (
        "MiniCPMV4_6",
        {
            "scale_resolution": SIDE, "patch_size": PATCH, "max_slice_nums": 6,
            "downsample_mode": "4x",
        },
        tuple(_MINICPM.values()), "<image_pad>",
        INTERNVL_CHAT.replace("<IMG_CONTEXT>", "<image_pad>"),
    ),
}  # fmt: skip
_SNAKE = {
    "Idefics3": "idefics3",
    "SmolVLM": "smolvlm",
    "GotOcr2": "got_ocr2",
    "QianfanOCR": "qianfan_ocr",
    "MiniCPMV4_6": "minicpmv4_6",
}
OF_INTERNVL = ("InternVL", "QianfanOCR")
_ENLARGED = {"size": {"longest_edge": 3 * SIDE}, "max_image_size": {"longest_edge": SIDE}}


def image_classes(name: str) -> ModuleType:
    """Return the module with the Pillow processor of the images of a class."""
    snake = _SNAKE[name]
    return import_module(f"transformers.models.{snake}.image_processing_pil_{snake}")


def cutting_folder(folder: Path, family: str, **settings: Any) -> Path:
    """Make a folder with the tokenizer, the chat template and the processor of a family."""
    name, own, specials, _, chat = FAMILIES[family]
    tokenizer_folder(folder, chat, specials=specials)
    config = {"image_processor_type": f"{name}ImageProcessor", **(own or _ENLARGED), **settings}
    config["processor_class"] = f"{family}Processor"
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    names = ("start_image_token", "end_image_token", "context_image_token", "video_token")
    if family in (*OF_INTERNVL, "MiniCPMV4_6"):
        file = folder / "tokenizer_config.json"
        of_internvl = dict(zip(names, specials, strict=False))
        extra = of_internvl if family in OF_INTERNVL else _MINICPM
        file.write_text(json.dumps({**json.loads(file.read_text()), "extra_special_tokens": extra}))
    return folder


def processor_of(folder: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the processor of `transformers`, with its images of Pillow: torchvision is absent."""
    name, _, _, _, chat = FAMILIES[family]
    images = image_classes(name)
    snake = _SNAKE.get(family, family.lower())
    monkeypatch.setitem(sys.modules, images.__name__.replace("_pil_", "_"), images)
    from transformers import PreTrainedTokenizerFast

    module = import_module(f"transformers.models.{snake}.processing_{snake}")
    if family == "SmolVLM":
        # For the words of videos.
        monkeypatch.setattr(module, "num2words", str)
    made = getattr(module, f"{family}Processor")
    none = SimpleNamespace(num_frames=None, fps=None, slice_mode=False, downsample_mode="4x")
    monkeypatch.setattr(made, "video_processor", none, raising=False)
    # Without that of videos, which torchvision decodes.
    parts = ["image_processor", "tokenizer"]
    if family == "MiniCPMV4_6":
        parts.insert(1, "video_processor")
        monkeypatch.setattr(made, "check_argument_for_proper_class", lambda self, name, part: part)
    monkeypatch.setattr(made, "get_attributes", classmethod(lambda cls: parts))
    rows = (SIDE // PATCH // SHUFFLE) ** 2
    length = "image_seq_length" if family in OF_INTERNVL else "image_seq_len"
    more: dict[str, Any] = {length: rows}
    if family not in ("Idefics3", "QianfanOCR"):
        more["video_processor"] = None
    if family == "MiniCPMV4_6":
        more = {"video_processor": none}
    return made(
        getattr(images, f"{name}ImageProcessorPil").from_pretrained(folder),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder),
        chat_template=chat,
        **more,
    )


def conversation(images: int, answer: str) -> list[dict[str, Any]]:
    """Return a question about some images, one of which stands behind text, and its answer."""
    asked: list[dict[str, Any]] = [{"type": "text", "text": "What is in the red house?"}]
    asked[:0] = [{"type": "image"}] * (images > 0)
    asked += [{"type": "image"}] * (images - 1)
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]


def write_cut_shard(path: Path, samples: Sequence[Sequence[tuple[int, int]]]) -> None:
    """Write a shard of samples, each with images of these sizes and a conversation about them."""
    write_image_shard(path, samples, conversation)


def cut_spec(
    shards: Path,
    folder: Path,
    family: str,
    modules: dict[str, Any] | None = None,
    *,
    seq: int = 512,
    data: dict[str, Any] | None = None,
    **more: Any,
) -> Spec:
    """Return a spec over the shards of a folder, for a tower and language of the smallest size."""
    vit = {"kind": "vit", "patch": PATCH, "shuffle": SHUFFLE, "channels": 3}
    placeholder = token_id(folder, FAMILIES[family][3])
    return spec(
        modules
        or {
            "vision": box(0, model=vit, placeholder=placeholder),
            "language": box(0, model={"vocab": 400}),
        },
        data=shard_data(
            shards,
            **{"tokenizer": folder, "processors": {"vision": str(folder)}, **(data or {})},
        ),
        seq=seq,
        **more,
    )
