"""Images and conversations become what the processor of a Llama 4 makes of them.

Its images need torchvision: where that is absent, torch itself resizes, pads and normalises.
"""

import importlib
import importlib.util
import io
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tests.support.shards import image_bytes, tokenizer_folder, write_shard
from tests.support.specs import box
from tests.unit.test_record_facts import assert_one_by_one
from tests.unit.test_shard_samples import opened, shard_spec
from torch import Tensor
from transformers import AutoTokenizer
from transformers.image_utils import SizeDict

from mimo_launch.checks.all_checks import check
from mimo_launch.data.samples.decode_media import process_cut
from mimo_launch.processors.canvas_rules import Canvas
from mimo_launch.processors.images import read_recipe

SIDE, PATCH, SHUFFLE, MOST = 16, 4, 2, 6
ROWS = (SIDE // PATCH // SHUFFLE) ** 2
TOKENS = (
    "<|image|>", "<|patch|>", "<|image_start|>", "<|image_end|>", "<|tile_x_separator|>",
    "<|tile_y_separator|>",
)  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
SEEN = [
    [(16, 16)], [(40, 90)], [(91, 20)], [(32, 32)], [(87, 86)], [(300, 411)], [(17, 15)],
    [(1, 70)], [(5, 4)], [(20, 30), (300, 41)], [(8, 9), (9, 8), (61, 30)], [],
]  # fmt: skip
MODEL: dict[str, Any] = {
    "kind": "llama4_vision", "patch": PATCH, "channels": 3, "shuffle": SHUFFLE,
    "image": [SIDE // PATCH] * 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Return the module of `transformers` with the rules for images."""
    with pytest.MonkeyPatch.context() as patched:
        if importlib.util.find_spec("torchvision") is None:
            functional = ModuleType("torchvision.transforms.v2.functional")
            functional.pad = lambda x, padding, fill: F.pad(  # type: ignore[attr-defined]
                x, (padding[0], padding[2], padding[1], padding[3])
            )
            for name in ("", ".transforms", ".transforms.v2"):
                patched.setitem(sys.modules, f"torchvision{name}", ModuleType(name))
            patched.setitem(sys.modules, functional.__name__, functional)
            sys.modules["torchvision.transforms.v2"].functional = functional  # type: ignore[attr-defined]
        return importlib.import_module("transformers.models.llama4.image_processing_llama4")


class Steps:
    """What its images need of torchvision, by torch."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def resize(self, image: Tensor, size: SizeDict, resample: Any) -> Tensor:
        del resample
        wanted = size.height, size.width
        if image.shape[-2:] == wanted:
            return image
        return F.interpolate(image, wanted, mode="bilinear", antialias=True, align_corners=False)

    def normalize(self, image: Tensor, mean: list[float], std: list[float]) -> Tensor:
        middle, spread = (torch.tensor(x, dtype=image.dtype).view(-1, 1, 1) for x in (mean, std))
        return image.sub(middle).div_(spread)

    def rescale_and_normalize(self, *given: Any) -> Tensor:
        of = self._theirs.Llama4ImageProcessor.rescale_and_normalize
        found: Tensor = getattr(of, "__wrapped__", of)(self, *given)
        return found

    def made(self, images: list[Image.Image], side: int, most: int, largest: bool) -> Any:
        """Return pixels of all tiles, and the grid of each image."""
        arrays = [np.asarray(each.convert("RGB")).transpose(2, 0, 1).copy() for each in images]
        half = [0.5] * 3
        return self._theirs.Llama4ImageProcessor._preprocess(
            self, [torch.from_numpy(each) for each in arrays], True,
            SizeDict(height=side, width=side), None, True, 1 / 255, True, half, half, most, largest,
            False, None,
        )  # fmt: skip


def folder_of(folder: Path, **more: Any) -> Path:
    """Make a folder with a tokenizer and the processor."""
    tokenizer_folder(folder, TEMPLATE, specials=TOKENS)
    config = {
        "image_processor_type": "Llama4ImageProcessorFast", "processor_class": "Llama4Processor",
        "size": {"height": SIDE, "width": SIDE}, "max_patches": MOST, **more,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder


def conversation(number: int) -> list[dict[str, Any]]:
    asked = [{"type": "image"}] * number
    return [
        {"role": "user", "content": [*asked, {"type": "text", "text": "What is seen?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": f"{number} images."}]},
    ]


@pytest.mark.parametrize("largest", [False, True])
def test_pixels_and_tokens_are_those_of_the_processor(
    largest: bool, theirs: Any, tmp_path: Path
) -> None:
    """Tiles, all of the image behind them, and the separators between them."""
    from transformers.models.llama4.processing_llama4 import Llama4Processor

    folder = folder_of(tmp_path / "words", resize_to_max_canvas=largest)
    tokenizer, steps = AutoTokenizer.from_pretrained(folder), Steps(theirs)
    writer = Llama4Processor.__new__(Llama4Processor)
    records, images = [], []
    for number, sizes in enumerate(SEEN):
        data = [image_bytes(*size, seed=10 * number + i) for i, size in enumerate(sizes)]
        images.append([Image.open(io.BytesIO(each)) for each in data])
        members = {f"{i}.png": each for i, each in enumerate(data)}
        json_ = {"messages": conversation(len(sizes))}
        records.append((f"{number:02d}", {**members, "json": json_}))
    write_shard(tmp_path / "a.tar", records)
    patch = tokenizer.convert_tokens_to_ids("<|patch|>")
    modules = {"eye": box(model=MODEL, placeholder=patch)}
    given = {"tokenizer": str(folder), "processors": {"eye": str(folder)}}
    made = shard_spec(tmp_path, modules, template="chat", seq=1024, **given)
    assert "processor-not-supported" not in {each.code for each in check(made)}
    data = opened(made)
    assert [each["why"] for each in data.splits["train"].index.bad()] == []
    assert_one_by_one(data)
    numbers = set()
    for number, sizes in enumerate(SEEN):
        found, text = data.describe("train", number), data.text("train", number)[0]
        wanted = tokenizer.apply_chat_template(conversation(len(sizes)), tokenize=False)
        its = steps.made(images[number], SIDE, MOST, largest) if sizes else None
        before, *after = wanted.split("<|image|>")
        grids = its["aspect_ratios"] if its else []
        for grid, rest in zip(grids, after, strict=True):
            before += writer._prompt_split_image(grid.tolist(), ROWS) + rest
        assert text[: found.num_tokens].tolist() == tokenizer(before)["input_ids"]
        arrays = [np.asarray(each) for each in data.images("train", number, "eye")]
        if its:
            pixels = torch.cat(list(its["pixel_values"])).float().numpy()
            assert len(arrays) == len(pixels)
            assert np.array_equal(np.stack(arrays), pixels)
        spans = found.spans.get("eye", ())
        places = [place for each in spans for place in range(each.position, each.end)]
        assert places == np.flatnonzero(text == patch).tolist()
        numbers.add(len(arrays))
    assert len(numbers) > 4


@pytest.mark.parametrize("largest", [False, True])
def test_canvases_are_those_of_transformers(largest: bool, theirs: Any, tmp_path: Path) -> None:
    """Of the published size, for images of any shape, and the sizes of images on them."""
    size = {"height": 336, "width": 336}
    folder = folder_of(tmp_path / "x", size=size, max_patches=16, resize_to_max_canvas=largest)
    cut = read_recipe(folder).cut
    assert isinstance(cut, Canvas)
    known = torch.tensor(theirs.find_supported_resolutions(16, SizeDict(**size)))
    draws = random.Random(5)
    sizes = [(draws.randint(1, 3000), draws.randint(1, 3000)) for _ in range(300)]
    sizes += [(336, 336), (337, 337), (672, 336), (1344, 1344), (4000, 20), (3, 4000), (168, 168)]
    for each in sizes:
        canvas = tuple(theirs.get_best_fit(each, known, resize_to_max_canvas=largest).tolist())
        assert cut.steps(*each) == [canvas], each
        limits = (
            canvas
            if largest
            else tuple(
                min(max(length, 336), most) for length, most in zip(each, canvas, strict=True)
            )
        )
        fitted = theirs.get_max_res_without_distortion(each, limits)
        assert cut.fitted(*each) == tuple(max(length, 1) for length in fitted), each


@pytest.mark.parametrize("wrong", ["rounded once", "all of it first"])
def test_the_bound_sees_other_pixels(wrong: str, theirs: Any, tmp_path: Path) -> None:
    recipe = read_recipe(folder_of(tmp_path / "words"))
    image = Image.open(io.BytesIO(image_bytes(61, 47))).convert("RGB")
    assert isinstance(recipe.cut, Canvas)
    found = np.stack(list(process_cut(image, recipe, recipe.cut)))
    its = Steps(theirs).made([image], SIDE, MOST, False)
    wanted = torch.cat(list(its["pixel_values"])).float().numpy()
    assert np.array_equal(found, wanted)
    if wrong == "rounded once":
        whole = ((found + 1) * 127.5).round() / 127.5 - 1
        found = torch.from_numpy(whole).bfloat16().float().numpy()
    else:
        found = np.roll(found, 1, axis=0)
    assert not np.array_equal(found, wanted)


@pytest.mark.parametrize(
    "wrong", [{"do_rescale": False}, {"size": {"height": 16, "width": 8}}, {"max_patches": 0}]
)
def test_other_settings_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "words", **wrong)
    given = {"tokenizer": str(folder), "processors": {"eye": str(folder)}}
    write_shard(tmp_path / "a.tar", [("0", {"png": image_bytes(8, 8), "txt": b"A dog."})])
    made = shard_spec(tmp_path, {"eye": box(model=MODEL)}, template="chat", **given)
    assert "processor-not-supported" in {each.code for each in check(made)}
