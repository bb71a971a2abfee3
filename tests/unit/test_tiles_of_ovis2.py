"""Images and conversations become what the processor of an Ovis2 makes of them."""

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.shards import image_bytes, tokenizer_folder, write_shard
from tests.support.specs import box
from tests.support.unlike_tiles import OTHER, assert_refused
from tests.unit.test_record_facts import assert_one_by_one
from tests.unit.test_shard_samples import opened, shard_spec
from transformers import AutoTokenizer
from transformers.models.ovis2 import image_processing_pil_ovis2 as theirs
from transformers.models.ovis2.processing_ovis2 import Ovis2Processor

from mimo_launch.checks.all_checks import check
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.tiles import IndicatorRule
from mimo_launch.processors.covering_rules import Covering
from mimo_launch.processors.cut_rules import grids_between
from mimo_launch.processors.images import read_recipe

SIDE, PATCH, SHUFFLE, MOST = 16, 4, 2, 6
ROWS = (SIDE // PATCH // SHUFFLE) ** 2
TOKENS = ("<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>\n{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
SEEN = [
    [(16, 16)], [(40, 90)], [(91, 20)], [(32, 32)], [(87, 86)], [(300, 411)], [(17, 15)],
    [(1, 70)], [(200, 70)], [(20, 30), (300, 41)], [(8, 9), (9, 8), (61, 30)], [],
]  # fmt: skip
CROPPED = {"crop_to_patches": True, "max_patches": MOST}


def settings(**more: Any) -> dict[str, Any]:
    size = {"height": SIDE, "width": SIDE}
    return {"image_processor_type": "Ovis2ImageProcessor", "size": size, **more}


def folder_of(folder: Path, **more: Any) -> Path:
    """Make a folder with a tokenizer and the processor."""
    tokenizer_folder(folder, TEMPLATE, specials=TOKENS)
    config = settings(**more) | {"processor_class": "Ovis2Processor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder


def model_of(**more: Any) -> dict[str, Any]:
    side = SIDE // PATCH
    return {
        "kind": "ovis2_vision", "patch": PATCH, "channels": 3, "shuffle": SHUFFLE, "words": 9,
        "image": [side, side], **more,
    }  # fmt: skip


def conversation(number: int) -> list[dict[str, Any]]:
    asked = [{"type": "image"}] * number
    return [
        {"role": "user", "content": [*asked, {"type": "text", "text": "What is seen?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": f"{number} images."}]},
    ]


GRIDS = [list(each) for each in grids_between(1, MOST)]


@pytest.mark.parametrize(
    ("said", "tiles"),
    [
        (CROPPED, {"grids": GRIDS}),
        (CROPPED | {"use_covering_area_grid": False}, {"grids": GRIDS}),
        (
            CROPPED | {"use_covering_area_grid": False, "min_patches": 2, "max_patches": 3},
            {"grids": [[1, 2], [2, 1], [1, 3], [3, 1]]},
        ),
        ({}, {}),
    ],
)
def test_pixels_and_tokens_are_those_of_the_processor(
    said: dict[str, Any], tiles: dict[str, Any], tmp_path: Path
) -> None:
    """Learned rows have the places of its tokens, between the rows of tiles in its order."""
    folder = folder_of(tmp_path / "words", **said)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    image_processor = theirs.Ovis2ImageProcessorPil(**settings(**said))
    writer = Ovis2Processor.__new__(Ovis2Processor)
    writer.image_seq_length = ROWS
    records, images = [], []
    for number, sizes in enumerate(SEEN):
        data = [image_bytes(*size, seed=10 * number + i) for i, size in enumerate(sizes)]
        images.append([Image.open(io.BytesIO(each)) for each in data])
        members = {f"{i}.png": each for i, each in enumerate(data)}
        json_ = {"messages": conversation(len(sizes))}
        records.append((f"{number:02d}", {**members, "json": json_}))
    write_shard(tmp_path / "a.tar", records)
    ids = tokenizer.convert_tokens_to_ids(list(TOKENS))
    modules = {"eye": box(model=model_of(tiles=tiles), placeholder=ids[0])}
    given = {"tokenizer": str(folder), "processors": {"eye": str(folder)}}
    made = shard_spec(tmp_path, modules, template="chat", seq=1024, **given)
    assert "processor-not-supported" not in {each.code for each in check(made)}
    data = opened(made)
    assert [each["why"] for each in data.splits["train"].index.bad()] == []
    assert_one_by_one(data)
    rule, numbers = kind_of(made.modules["eye"].model).tokens.tiles, set()
    assert isinstance(rule, IndicatorRule)
    for number, sizes in enumerate(SEEN):
        found, text = data.describe("train", number), data.text("train", number)[0]
        wanted = tokenizer.apply_chat_template(conversation(len(sizes)), tokenize=False)
        its: dict[str, Any] = {"grids": [], "pixel_values": []}
        if sizes:
            its = dict(image_processor(images[number], return_tensors="pt"))
        for image in range(len(sizes)):
            written = writer.replace_image_token({"grids": its["grids"]}, image)
            wanted = wanted.replace("<image>", written, 1)
        its_ids = tokenizer(wanted)["input_ids"]
        as_rows = [ids[0] if each in ids else each for each in its_ids]
        assert text[: found.num_tokens].tolist() == as_rows
        spans, first = found.spans.get("eye", ()), 0
        for span, array in zip(spans, data.images("train", number, "eye"), strict=True):
            order = [min(each, 0) for each in rule.order(span.shown)]
            assert [-ids.index(each) for each in its_ids[span.position : span.end]] == order
            pixels = np.asarray(its["pixel_values"])[first : first + len(array)]
            assert np.abs(np.asarray(array) - pixels).max() <= 1e-5
            first += len(array)
            numbers.add(len(array))
        assert first == len(its["pixel_values"])
    assert len(numbers) > 2 or len(tiles.get("grids", [1])) < 5


def test_grids_are_those_of_transformers(tmp_path: Path) -> None:
    """Of the published size, for images of any shape; of equal grids the same one."""
    size = {"height": 448, "width": 448}
    folder = folder_of(tmp_path / "words", crop_to_patches=True, max_patches=9, size=size)
    cut = read_recipe(folder).tiled
    assert isinstance(cut, Covering)
    draws = random.Random(5)
    sizes = [(draws.randint(1, 3000), draws.randint(1, 3000)) for _ in range(300)]
    sizes += [(448, 448), (449, 449), (896, 448), (448, 897), (1344, 1344), (4000, 20), (3, 4000)]
    for height, width in sizes:
        columns, rows = theirs.get_min_tile_covering_grid((height, width), 448, 9)
        assert cut.grid(height, width) == (rows, columns), (height, width)


VIT = {"kind": "vit", "patch": PATCH, "channels": 3}
SQUARES = VIT | {"positions": "learned", "image": [4, 4], "tiles": {"grids": [[1, 2]]}}


@pytest.mark.parametrize(
    ("model", "said", "why", "help_"),
    [
        (
            model_of(), CROPPED | {"max_patches": 2}, "on other grids",
            "write `grids: [[1, 1], [1, 2], [2, 1]]` in `tiles` of `eye`",
        ),
        (
            model_of(tiles={"grids": [[1, 2]]}), {}, "on other grids",
            "write `grids: [[1, 1]]` in `tiles` of `eye`",
        ),
        (
            VIT | {"shuffle": SHUFFLE}, CROPPED,
            "learned rows between them, which only `kind: ovis2_vision` has", OTHER,
        ),
        (
            model_of(),
            {"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": SIDE},
             "crop_size": SIDE, "image_grid_pinpoints": [[SIDE, 2 * SIDE]]},
            "one large image", OTHER,
        ),
        *(
            (model, said, "several images of one", OTHER)
            for model in (model_of(), SQUARES)
            for said in (
                CROPPED | {"image_processor_type": "GotOcr2ImageProcessor"},
                {"image_processor_type": "Llama4ImageProcessor"},
            )
        ),
    ],
)  # fmt: skip
def test_tiles_of_other_models_are_refused(
    model: dict[str, Any], said: dict[str, Any], why: str, help_: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "words", **said)
    assert_refused(folder, model, why, help_)
