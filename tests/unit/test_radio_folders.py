"""What a folder of RADIO says, and the pixels that its input conditioner makes."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.unit.test_earlier_runs import saved, starting

from mimo_launch.data.samples.decode_media import process
from mimo_launch.hugging_face.families.radio import RADIO
from mimo_launch.hugging_face.folder import ConfigError
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.recipes import recipe_of
from mimo_launch.spec.spec import VitModel

# What is left out has the value of C-RADIOv4-H.
PUBLISHED: dict[str, Any] = {"model_type": "radio"}


def written(folder: Path, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(PUBLISHED | config))
    return folder


@pytest.mark.parametrize(
    "model",
    [
        {},
        # A width of which the ratio is no exact number.
        {"hidden": 49, "heads": 7, "mlp": 57, "registers": 1, "layer_scale": 0.5},
        {"activation": "swiglu", "mlp": 40, "hidden": 28, "heads": 7, "qkv_bias": False},
    ],
)
def test_a_configuration_of_ours_is_read_as_our_model(model: dict[str, Any]) -> None:
    asked = VitModel(**{"kind": "vit", **part_of(PUBLISHED, "vit").keys(), **model})
    keys = RADIO.keys(RADIO.config(asked))
    assert {key: getattr(asked, key) for key in keys} == keys


def test_a_table_of_a_size_that_is_no_number() -> None:
    with pytest.raises(ConfigError, match="max_img_size"):
        part_of({**PUBLISHED, "max_img_size": "2048"}, "vit").keys()


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_pixels_are_those_behind_the_conditioner(
    tmp_path: Path, *, normalizes: bool, later: bool
) -> None:
    """Also if the processor normalises, too, and in a run that starts from an earlier one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import RadioConfig
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
        from transformers.models.radio.modeling_radio import RadioInputConditioner
    norms = {"norm_mean": [0.4, 0.5, 0.3], "norm_std": [0.2, 0.3, 0.25]}
    folder = written(tmp_path / "tower", **norms)
    sizes = {"height": 30, "width": 44}
    processor = CLIPImageProcessorPil(size=sizes, do_center_crop=False, do_normalize=normalizes)
    processor.save_pretrained(folder)
    start = str(folder)
    if later:
        start = saved(tmp_path / "run", modules={"vision": {"init_from": start}})
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (61, 47, 3), dtype=np.uint8))
    found = process(image, recipe_of(starting(start), "vision"))
    given = torch.from_numpy(processor(image, return_tensors="np")["pixel_values"])
    wanted = RadioInputConditioner(RadioConfig(**norms))(given)[0].numpy()
    assert found.shape == wanted.shape == (3, 30, 44)
    assert np.abs(found - wanted).max() <= 1e-5


def test_without_a_processor_images_keep_their_sizes(tmp_path: Path) -> None:
    """The table of positions is that of the largest image, not of the usual one."""
    made = starting(str(written(tmp_path / "tower")))
    model = made.modules["vision"].model
    cropped = model.model_copy(
        update={"positions": "learned", "image": (8, 8), "interpolation": "cropped"}
    )
    module = made.modules["vision"].model_copy(update={"model": cropped})
    made = made.model_copy(update={"modules": {**made.modules, "vision": module}})
    recipe = recipe_of(made, "vision")
    assert recipe.size(24, 12) == (24, 12)
    assert (recipe.mean[0], recipe.std[0]) == (0.48145466, 0.26862954)


def test_a_conditioner_that_is_malformed_is_named(tmp_path: Path) -> None:
    made = starting(str(written(tmp_path / "tower", norm_mean="none")))
    with pytest.raises(ProcessorError, match="input conditioner"):
        recipe_of(made, "vision")
