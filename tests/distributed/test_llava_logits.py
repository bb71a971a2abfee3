"""Towers and whole LLaVA models are those of `transformers`, with weights from `init_from`."""

from pathlib import Path

import pytest
import torch
from tests.support.hugging_face import ids_of, save
from tests.support.llava import (
    TOWERS,
    features_on_rank,
    images_of,
    made_tower,
    tiny_tower,
)
from tests.support.running_ranks import run_on_running_ranks
from tests.support.whole_models import deviation


@pytest.mark.parametrize("image", [[4, 4], [3, 5], [7, 2]], ids=["grid", "3x5", "7x2"])
@pytest.mark.parametrize(
    ("precision", "dtype", "bound"),
    [("fp32", torch.float32, 1e-5), ("fp64", torch.float64, 1e-9)],
    ids=["fp32", "fp64"],
)
@pytest.mark.parametrize("tower", TOWERS)
def test_towers_are_those_of_transformers(
    tower: str, precision: str, dtype: torch.dtype, bound: float, image: list[int], tmp_path: Path
) -> None:
    """On images of other sizes as well, whose positions `interpolate_pos_encoding` makes."""
    model = tiny_tower(tower, dtype)
    save(model, tmp_path / "model")
    asked = made_tower(tower, tmp_path / "model", image, precision, layers=3)
    [found] = run_on_running_ranks(features_on_rank, asked, tmp_path, world_size=1)
    pixels = torch.cat([images_of(asked, sample) for sample in ids_of(asked)]).to(dtype)
    with torch.no_grad():
        out = model(pixel_values=pixels, interpolate_pos_encoding=True).last_hidden_state
    patches = out[:, int(tower == "clip") :].flatten(0, 1)
    assert deviation(found.double(), patches.double()) < bound


@pytest.mark.parametrize("tower", TOWERS)
def test_the_first_layers_of_a_tower_beside_a_text_model(tower: str, tmp_path: Path) -> None:
    model = tiny_tower(tower, whole=True)
    save(model, tmp_path / "model")
    asked = made_tower(tower, tmp_path / "model", [4, 4], "fp32", layers=2)
    [found] = run_on_running_ranks(features_on_rank, asked, tmp_path, world_size=1)
    pixels = torch.cat([images_of(asked, sample) for sample in ids_of(asked)])
    with torch.no_grad():
        states = model.vision_model(pixel_values=pixels, output_hidden_states=True).hidden_states
    patches = states[-2][:, int(tower == "clip") :].flatten(0, 1)
    assert deviation(found, patches) < 1e-5
