"""What a folder of Nemotron-H Omni says, under old names, too, and the images that it sees."""

import ast
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from tests.support.nemotron_h import CONFIG
from tests.support.shards import tokenizer_folder

from mimo_launch.data.samples.decode_media import process
from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.hugging_face.part import NoSuchPart
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.processors.image_texts import image_text
from mimo_launch.processors.images import read_recipe
from mimo_launch.processors.resize_rules import ImageTooThin

OMNI: dict[str, Any] = {
    "model_type": "nemotron_h_omni", "image_token_id": 7, "projector_hidden_size": 20,
    "vision_config": {"model_type": "radio", "hidden_size": 32, "num_attention_heads": 4},
    "text_config": {"model_type": "nemotron_h", **CONFIG},
}  # fmt: skip
PROCESSOR = {
    "image_processor_type": "NemotronH_Omni_Reasoning_V3ImageProcessor", "patch_size": 4,
    "min_num_patches": 24, "max_num_patches": 90, "norm_mean": [0.4, 0.5, 0.3],
    "norm_std": [0.2, 0.3, 0.25],
}  # fmt: skip


def test_old_names_are_read(tmp_path: Path) -> None:
    """As published folders have them; the audio tower is not read, and is named."""
    old = {
        "text_config": "llm_config", "image_token_id": "img_context_token_id",
        "audio_config": "sound_config",
    }  # fmt: skip
    config = {old.get(key, key): each for key, each in OMNI.items()}
    config |= {"sound_config": {"model_type": "parakeet"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = read_contents(tmp_path)
    assert [(each.name, each.kind) for each in found.modules] == [
        ("vision", "vit"), ("language", "hybrid"),
    ]  # fmt: skip
    assert found.modules[0].placeholder == 7
    assert [each.partition(";")[0] for each in found.unread] == [
        "audio_config.model_type: parakeet"
    ]
    for kind in ("vit", "hybrid"):
        assert part_of(config, kind).keys() == part_of(OMNI, kind).keys()


def test_the_norm_behind_the_tower_is_read_under_both_its_names() -> None:
    """That of NVIDIA's files, which is written, and that of `transformers` 5.23."""
    part = part_of(OMNI, "vit")
    norm = "vision_final_layernorm.weight"
    assert part.inner_name(f"vision_projector.{norm}") == part.inner_name(norm) == norm
    assert part.file_name(norm) == f"vision_projector.{norm}"


def test_without_an_audio_tower_nothing_is_unread(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OMNI))
    assert read_contents(tmp_path).unread == ()
    with pytest.raises(NoSuchPart):
        part_of(OMNI, "decoder")


def grid_of_transformers() -> Any:
    """Return the function that sizes images; its module cannot be imported without torchvision."""
    folder = Path(transformers.__file__).parent / "models" / "nemotron_h_omni"
    source = (folder / "image_processing_nemotron_h_omni.py").read_text(encoding="utf-8")
    [found] = [
        each
        for each in ast.parse(source).body
        if isinstance(each, ast.FunctionDef) and each.name == "get_patch_grid_size"
    ]
    names: dict[str, Any] = {"math": math}
    exec(compile(ast.Module([found], []), "grid", "exec"), names)
    return names["get_patch_grid_size"]


def test_sizes_are_those_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    recipe, theirs, refused = read_recipe(tmp_path), grid_of_transformers(), 0
    assert (recipe.factor, recipe.most_pixels) == (8, 90 * 16)
    for height in (*range(1, 60), 200, 1000):
        for width in (*range(1, 60), 200, 1000):
            try:
                wanted = theirs(height, width, 4, 2, 24, 90)
            except ZeroDivisionError:
                refused += 1
                with pytest.raises(ImageTooThin):
                    recipe.size(height, width)
                continue
            assert recipe.size(height, width) == (4 * wanted[0], 4 * wanted[1])
    assert refused


def test_budgets_follow_the_length_of_a_text(tmp_path: Path) -> None:
    for more, most in (
        ({}, 90),
        ({"max_num_patches": 0}, 65520),
        ({"max_model_len": 34}, 90),
        ({"max_model_len": 20}, 64),
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | more))
        assert read_recipe(tmp_path).most_pixels == most * 16


@pytest.mark.parametrize("size", [(61, 47), (9, 13), (32, 24), (90, 200)])
def test_pixels_are_resized_as_numbers(size: tuple[int, int], tmp_path: Path) -> None:
    """As torchvision resizes tensors: neither rounded nor kept within the range of a pixel."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    recipe = read_recipe(tmp_path)
    squares = (np.indices(size) // 7).sum(axis=0) % 2
    image = np.stack([255 * squares, 255 - 200 * squares, 90 * squares], axis=2).astype(np.uint8)
    found = process(Image.fromarray(image), recipe)
    given = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    made = F.interpolate(given, recipe.size(*size), mode="bicubic", antialias=True)
    mean, std = (torch.tensor(x)[:, None, None] for x in (recipe.mean, recipe.std))
    wanted = (made / 255 - mean) / std
    assert recipe.mean == (0.4, 0.5, 0.3)
    assert found.shape == wanted.shape[1:]
    assert np.abs(found - wanted[0].numpy()).max() <= 2e-5
    assert made.min() < 0 or size == recipe.size(*size)


def test_the_text_around_an_image_is_that_of_the_processor(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "model", specials=("<image>", "<img>", "</img>"))
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": "NemotronH_Omni_Reasoning_V3Processor"})
    )
    assert image_text(folder) == ("<image>", "<img><image></img>")
