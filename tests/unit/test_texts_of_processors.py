"""Tokens and pixels of a conversation are those that the processor of a model makes of it."""

import io
import json
import sys
import tarfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.shards import shard_data, tokenizer_folder, write_image_shard
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.template_program import Program
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.processors.tokenizer import chat_sources, special_texts, token_id

SIDE, PATCH = 16, 4
JANUS_CHAT = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{% for part in "
    "message.content %}{% if part.type == 'image' %}<image_placeholder>\n{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{{ eos_token }}{% endfor %}"
)


_JANUS = {
    "image_token": "<image_placeholder>",
    "boi_token": "<begin_of_image>",
    "eoi_token": "<end_of_image>",
}


@dataclass(frozen=True)
class Kind:
    """A processor: its class, that of its images, its special tokens, a conversation's template."""

    processor: str
    images: str
    specials: dict[str, str]
    chat: str | None
    settings: dict[str, Any]


KINDS = {
    "janus": Kind(
        "Janus",
        "Janus",
        _JANUS,
        JANUS_CHAT,
        {},
    ),
    "janus, with a prompt of its own": Kind(
        "Janus",
        "Janus",
        _JANUS,
        JANUS_CHAT,
        {"use_default_system_prompt": True},
    ),
    "paligemma": Kind(
        "PaliGemma", "Siglip", {"image_token": "<image>"}, None, {"image_seq_length": 16}
    ),
}
SAMPLES = [[(9, 13)], [(40, 6), (16, 16)]]


def folder_of(kind: Kind, folder: Path) -> Path:
    tokenizer_folder(folder, kind.chat or "", specials=tuple(kind.specials.values()))
    file = folder / "tokenizer_config.json"
    words = {**json.loads(file.read_text()), "extra_special_tokens": kind.specials}
    if kind.chat is None:
        words.pop("chat_template", None)
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    file.write_text(json.dumps(words))
    config = {
        "image_processor_type": f"{kind.images}ImageProcessor",
        "size": {"height": SIDE, "width": SIDE},
        "processor_class": f"{kind.processor}Processor",
        **kind.settings,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    whole = {"processor_class": config["processor_class"], **kind.settings}
    (folder / "processor_config.json").write_text(json.dumps(whole))
    return folder


def processor_of(kind: Kind, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the processor of `transformers`, with its images of Pillow: torchvision is absent."""
    name = kind.images.lower()
    images = import_module(f"transformers.models.{name}.image_processing_pil_{name}")
    monkeypatch.setitem(sys.modules, images.__name__.replace("_pil_", "_"), images)
    from transformers import PreTrainedTokenizerFast

    name = kind.processor.lower()
    module = import_module(f"transformers.models.{name}.processing_{name}")
    pictures = getattr(images, f"{kind.images}ImageProcessorPil").from_pretrained(folder)
    pictures.image_seq_length = (SIDE // PATCH) ** 2
    more = {}
    if kind.processor == "Janus":
        more = {**kind.settings, "num_image_tokens": (SIDE // PATCH) ** 2}
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    made = getattr(module, f"{kind.processor}Processor")
    return made(pictures, words, chat_template=kind.chat, **more)


def conversation(images: int, answer: str) -> list[dict[str, Any]]:
    """Return a question after some images, and its answer."""
    asked = [*[{"type": "image"}] * images, {"type": "text", "text": "What is red?"}]
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]


@pytest.mark.parametrize("name", KINDS)
def test_a_conversation_is_that_of_the_processor(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[name]
    folder = folder_of(kind, tmp_path / "model")
    write_image_shard(tmp_path / "0.tar", SAMPLES, conversation)
    marker = token_id(folder, kind.specials["image_token"])
    modules = {
        "vision": box(
            0,
            model={
                "kind": "vit", "patch": PATCH, "channels": 3, "positions": "learned",
                "image": [SIDE // PATCH] * 2,
            },
            placeholder=marker,
        ),
        "language": box(0, model={"vocab": 2000}),
    }  # fmt: skip
    data = build_dataset(
        spec(
            modules,
            data=shard_data(tmp_path, folder, processors={"vision": str(folder)}),
            seq=256,
        )
    )
    processor = processor_of(kind, folder, monkeypatch)
    with tarfile.open(tmp_path / "0.tar") as file:
        files = {each: file.extractfile(each).read() for each in file.getnames()}  # type: ignore[union-attr]
    for index, sizes in enumerate(SAMPLES):
        answer = f"A dog, {index}."
        members = [files[f"{index:03d}.{place}.png"] for place in range(len(sizes))]
        images = [Image.open(io.BytesIO(each)).convert("RGB") for each in members]
        if kind.chat is None:
            asked: dict[str, Any] = {
                "text": ["<image>" * len(sizes) + "What is red?"],
                "suffix": [answer],
            }
        else:
            asked = {"text": [processor.apply_chat_template(conversation(len(sizes), answer))]}
        want = processor(images=[images], add_special_tokens=False, return_tensors="np", **asked)
        plan = data.describe("train", index)
        tokens, labels = data.text("train", index)
        assert tokens[: plan.num_tokens].tolist() == want["input_ids"][0].tolist()
        found = np.stack(data.images("train", index, "vision"))
        assert np.abs(found - want["pixel_values"]).max() <= 1e-5
        places = [
            place for each in plan.spans["vision"] for place in range(each.position, each.end)
        ]
        assert places == np.flatnonzero(tokens == marker).tolist()
        learnt = tokens[1:][labels[:-1] != IGNORE_LABEL].tolist()
        if "labels" in want:
            assert learnt == [each for each in want["labels"][0].tolist() if each != -100]
        assert data.words(learnt).strip().startswith(answer)


def test_a_paligemma_takes_one_question(tmp_path: Path) -> None:
    """Its processor has no words for a second one."""
    folder = folder_of(KINDS["paligemma"], tmp_path)
    program = Program(chat_sources(folder)["default"], special_texts(folder), None)
    ask = {"role": "user", "content": "What is red?"}
    answer = {"role": "assistant", "content": "A dog."}
    said = program.run(messages=[ask, answer], add_generation_prompt=False)
    assert said == "<s>What is red?\nA dog.</s>"
    for wrong in ([ask, answer, ask], [answer]):
        with pytest.raises(BadSample, match="one question and its answer"):
            program.run(messages=wrong, add_generation_prompt=False)
