"""Folders and specs of models whose images have a token of text between their lines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.shards import shard_data, tokenizer_folder, write_image_shard
from tests.support.specs import box, spec

from mimo_launch.processors.tokenizer import token_id
from mimo_launch.spec.spec import Spec

IMAGE, BREAK, END = "<row>", "<line>", "<end>"
CHAT = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}]"
    "{% for part in message.content %}{% if part.type == 'image' %}" + IMAGE + "{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{{ eos_token }}{% endfor %}"
)
LONGEST, PATCH, MERGE = 24, 2, 2


def marked_folder(folder: Path) -> Path:
    """Make a folder with the tokenizer, the chat template and the processor of a Mistral 3."""
    tokenizer_folder(folder, CHAT, specials=(IMAGE, BREAK, END))
    images = {
        "image_processor_type": "PixtralImageProcessor",
        "size": {"longest_edge": LONGEST},
        "patch_size": {"height": PATCH, "width": PATCH},
        "do_pad": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    whole = {
        "processor_class": "PixtralProcessor",
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "image_token": IMAGE,
        "image_break_token": BREAK,
        "image_end_token": END,
    }
    (folder / "processor_config.json").write_text(json.dumps(whole))
    return folder


def conversation(images: int, answer: str) -> list[dict[str, Any]]:
    """Return a question about some images, and its answer."""
    asked = [{"type": "text", "text": "What is in"}, *[{"type": "image"}] * images]
    return [
        {"role": "user", "content": [*asked, {"type": "text", "text": " the red house?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]


def write_lined_shard(path: Path, samples: Sequence[Sequence[tuple[int, int]]]) -> None:
    """Write a shard of samples, each with images of these sizes and a conversation about them."""
    write_image_shard(path, samples, conversation)


def lined_spec(
    shards: Path,
    folder: Path,
    modules: dict[str, Any] | None = None,
    *,
    seq: int = 512,
    too_long: str = "drop",
    **more: Any,
) -> Spec:
    """Return a spec over the shards of a folder, for a tower and language of the smallest size."""
    vit = {"kind": "vit", "patch": PATCH, "shuffle": MERGE, "channels": 3}
    placeholder = token_id(folder, IMAGE)
    return spec(
        modules
        or {
            "vision": box(0, model=vit, placeholder=placeholder),
            "language": box(0, model={"vocab": 400}),
        },
        data=shard_data(shards, folder, processors={"vision": str(folder)}, too_long=too_long),
        seq=seq,
        **more,
    )
