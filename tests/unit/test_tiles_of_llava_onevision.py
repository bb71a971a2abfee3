"""Images and conversations become what processors of models with tiles make of them.

These are a LLaVA-OneVision and a LLaVA-NeXT, which cuts each of several images of a sample.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.shards import image_bytes, tokenizer_folder, write_shard
from tests.support.specs import box
from tests.support.unlike_tiles import OTHER, assert_refused
from tests.support.videos import frames, zipped
from tests.unit.test_record_facts import assert_one_by_one
from tests.unit.test_shard_samples import opened, shard_spec
from transformers import AutoTokenizer
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision import processing_llava_onevision as theirs
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)

from mimo_launch.data.torch_media import resize
from mimo_launch.processors.image_recipe import BICUBIC

SIDE, PATCH = 29, 7
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
GRIDS = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 2), (3, 3)]
MODEL: dict[str, Any] = {
    "kind": "vit", "patch": PATCH, "channels": 3, "positions": "learned", "image": [4, 4],
    "tiles": {"grids": GRIDS, "most": 2, "side": SIDE},
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% elif part.type == 'video' %}<video>"
    "{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
# Height and width of the images of each sample: alone of all shapes, together, and text.
SEEN = [
    [(29, 29)], [(40, 90)], [(91, 20)], [(58, 57)], [(87, 86)], [(300, 411)], [(33, 31)],
    [(12, 9)], [(200, 70)], [(61, 200)], [(20, 30), (300, 41)], [(8, 9), (9, 8), (30, 30)], [],
]  # fmt: skip


def settings() -> dict[str, Any]:
    return {
        "image_processor_type": "LlavaOnevisionImageProcessor",
        "size": {"height": SIDE, "width": SIDE},
        "image_grid_pinpoints": [[down * SIDE, right * SIDE] for down, right in GRIDS],
    }


def settings_of_next() -> dict[str, Any]:
    return settings() | {
        "image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": SIDE},
        "crop_size": {"height": SIDE, "width": SIDE},
    }  # fmt: skip


NEXT = MODEL | {"tiles": {"grids": GRIDS, "each": True, "side": SIDE}}


def conversation(number: int) -> list[dict[str, Any]]:
    asked = [{"type": "image"}] * number
    return [
        {"role": "user", "content": [*asked, {"type": "text", "text": "What is seen?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": f"{number} images."}]},
    ]


def counted(tokens: int, sizes: list[tuple[int, int]], image: int) -> int:
    """Return the tokens of an image as the processor counts them."""
    processor = object.__new__(theirs.LlavaOnevisionProcessor)
    processor.image_processor = LlavaOnevisionImageProcessorPil(**settings())
    processor.num_image_tokens, processor.vision_aspect_ratio = tokens, "anyres_max_2"
    processor.vision_feature_select_strategy, processor.image_token = "full", "x"
    tile = np.zeros((1, 1, SIDE, SIDE))
    inputs = {"batch_num_images": [len(sizes)], "image_sizes": sizes, "pixel_values": tile[None]}
    return len(processor.replace_image_token(inputs, image))


def counted_by_next(tokens: int, sizes: list[tuple[int, int]], image: int) -> int:
    """Return the tokens of an image as the processor of a LLaVA-NeXT counts them."""
    del tokens
    processor = object.__new__(LlavaNextProcessor)
    processor.image_processor = LlavaNextImageProcessorPil(**settings_of_next())
    processor.patch_size, processor.num_additional_image_tokens = PATCH, 1
    processor.vision_feature_select_strategy, processor.image_token = "default", "x"
    inputs = {"image_sizes": sizes, "pixel_values": np.zeros((1, 1, 3, SIDE, SIDE))}
    return len(processor.replace_image_token(inputs, image))


@pytest.mark.parametrize(
    ("said", "made_by", "model", "counted_by"),
    [
        (settings, LlavaOnevisionImageProcessorPil, MODEL, counted),
        (settings_of_next, LlavaNextImageProcessorPil, NEXT, counted_by_next),
    ],
)
def test_pixels_and_tokens_are_those_of_the_processor(
    said: Any, made_by: Any, model: dict[str, Any], counted_by: Any, tmp_path: Path
) -> None:
    """Pixels within 1e-6; of a tile of 29 pixels, four patches of 7 see 28."""
    folder = tokenizer_folder(tmp_path / "words", TEMPLATE, specials=("<image>",))
    (folder / "preprocessor_config.json").write_text(json.dumps(said()))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = made_by(**said())
    records, images = [], []
    for number, sizes in enumerate(SEEN):
        data = [image_bytes(*size, seed=10 * number + i) for i, size in enumerate(sizes)]
        images.append([Image.open(io.BytesIO(each)) for each in data])
        members = {f"{i}.png": each for i, each in enumerate(data)}
        json_ = {"messages": conversation(len(sizes))}
        records.append((f"{number:02d}", {**members, "json": json_}))
    write_shard(tmp_path / "a.tar", records)
    placeholder = tokenizer.convert_tokens_to_ids("<image>")
    modules = {"eye": box(model=model, placeholder=placeholder)}
    given = {"tokenizer": str(folder), "processors": {"eye": str(folder)}}
    data = opened(shard_spec(tmp_path, modules, template="chat", seq=1024, **given))
    assert [each["why"] for each in data.splits["train"].index.bad()] == []
    assert_one_by_one(data)
    for number, sizes in enumerate(SEEN):
        found = data.describe("train", number)
        spans = found.spans.get("eye", ())
        rows = [counted_by(16, sizes, i) for i in range(len(sizes))]
        assert [span.rows for span in spans] == rows, sizes
        text = tokenizer.apply_chat_template(conversation(len(sizes)), tokenize=False)
        for each in rows:
            text = text.replace("<image>", "<IMAGE>" * each, 1)
        wanted = tokenizer(text.replace("<IMAGE>", "<image>"))["input_ids"]
        assert data.text("train", number)[0][: found.num_tokens].tolist() == wanted
        if sizes:
            made = processor([images[number]], return_tensors="np")["pixel_values"]
            pairs = zip(data.images("train", number, "eye"), made, strict=True)
            for array, tiles in pairs:
                # It adds tiles of zeros to those of the smaller of several images.
                wanted = tiles[: len(array), :, :28, :28]
                assert np.abs(np.asarray(array) - wanted).max() <= 1e-6


@pytest.mark.parametrize(
    ("wrong", "why", "help_"),
    [
        (
            {"image_grid_pinpoints": [[29, 58]]}, "on other grids",
            "write `grids: [[1, 2]]` in `tiles` of `eye`",
        ),
        ({"image_grid_pinpoints": [[29, 56]]}, "not tiles of 29 pixels", OTHER),
        ({"size": {"height": 31, "width": 31}}, "not make images of 29 x 29 pixels", OTHER),
    ],
)  # fmt: skip
def test_a_processor_of_other_tiles_is_refused(
    wrong: dict[str, Any], why: str, help_: str, tmp_path: Path
) -> None:
    folder = tokenizer_folder(tmp_path / "words", TEMPLATE, specials=("<image>",))
    (folder / "preprocessor_config.json").write_text(json.dumps(settings() | wrong))
    assert_refused(folder, MODEL, why, help_)


def test_tokens_of_a_video_are_those_of_the_processor(tmp_path: Path) -> None:
    """Frames have four rows each, a learned one is behind them; an image beside them is alone."""
    folder = tokenizer_folder(tmp_path / "words", TEMPLATE, specials=("<image>", "<video>"))
    (folder / "preprocessor_config.json").write_text(json.dumps(settings()))
    videos = {
        "video_processor_type": "LlavaOnevisionVideoProcessor",
        "size": {"height": SIDE, "width": SIDE},
    }
    (folder / "video_preprocessor_config.json").write_text(json.dumps(videos))
    json_ = {"messages": [
        {"role": "user", "content": [{"type": "video"}, {"type": "image"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Both."}]},
    ]}  # fmt: skip
    shown = frames(5, 40, 22)
    members = {"frames.zip": zipped(shown), "0.png": image_bytes(58, 57)}
    write_shard(tmp_path / "a.tar", [("00", {**members, "json": json_})])
    model = {**MODEL, "video": {"time": "none"}}
    placeholder = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<image>")
    modules = {"eye": box(model=model, placeholder=placeholder)}
    given = {"tokenizer": str(folder), "processors": {"eye": str(folder)}}
    data = opened(shard_spec(tmp_path, modules, template="chat", seq=1024, **given))
    spans = data.describe("train", 0).spans["eye"]
    processor = object.__new__(theirs.LlavaOnevisionProcessor)
    processor.num_image_tokens, processor.video_token = 16, "x"
    seen = {"pixel_values_videos": [np.zeros((5, 3, SIDE, SIDE))]}
    frames_of, image = spans[:-1], spans[-1]
    assert sum(x.rows for x in frames_of) == len(processor.replace_video_token(seen, 0)) == 21
    assert image.rows == counted(16, [(58, 57)], 0)
    arrays = data.images("train", 0, "eye")
    assert [x.shape for x in arrays[:-1]] == [(1, 3, 28, 28)] * 5
    for array, frame in zip(arrays, shown, strict=False):
        pixels = resize(frame.transpose(2, 0, 1), SIDE, SIDE, BICUBIC)
        mean, std = (np.array(each)[:, None, None] for each in (CLIP_MEAN, CLIP_STD))
        wanted = (pixels / 255 - mean) / std
        assert np.abs(array[0] - wanted[:, :28, :28]).max() < 1e-6
