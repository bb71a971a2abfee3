"""Towers and whole LLaVA models are those of `transformers`, with weights from `init_from`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.hugging_face import ids_of, joined, logits_on_rank, save, tokens_of, widen
from tests.support.llava import (
    LAYOUTS,
    TOWERS,
    VOCAB,
    features_on_rank,
    images_of,
    made_llava,
    made_tower,
    tiny_llava,
    tiny_tower,
)
from tests.support.running_ranks import run_on_running_ranks
from tests.support.whole_models import deviation
from torch import Tensor

from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec


def wanted_logits(model: Any, made: Spec, dtype: torch.dtype) -> Tensor:
    """Return the logits of each sample by itself, [samples, S, words]."""
    rows = []
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        pixels = images_of(made, sample).to(dtype)
        with torch.no_grad():
            out = model(input_ids=tokens[None], pixel_values=pixels if len(pixels) else None)
        rows.append(out.logits)
    return torch.cat(rows).double()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tower", "text", "token"), [("clip", "llama", 7), ("siglip", "qwen2", 40)]
)
def test_logits_are_those_of_transformers(
    tower: str, text: str, token: int, layout: str, tmp_path: Path
) -> None:
    """Text alone in some samples, several images in others; a placeholder amid the words."""
    model = tiny_llava(tower, text, token)
    save(model, tmp_path / "model")
    given = token if token != VOCAB - 1 else None
    asked = made_llava(tower, text, layout, tmp_path / "model", placeholder=given, precision="fp32")
    parts = run_on_running_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    wanted = wanted_logits(model, asked, torch.float32)
    assert deviation(joined(asked, parts, VOCAB), wanted) < 1e-5


@pytest.mark.parametrize("tower", TOWERS)
def test_logits_are_those_of_transformers_in_float64(tower: str, tmp_path: Path) -> None:
    model = tiny_llava(tower, "llama", 7, torch.float64)
    save(model, tmp_path / "model")
    widen(model)
    folder = tmp_path / "model"
    asked = made_llava(tower, "llama", "one rank", folder, placeholder=7, precision="fp64")
    [part] = run_on_running_ranks(logits_on_rank, asked, tmp_path, world_size=1)
    wanted = wanted_logits(model, asked, torch.float64)
    assert deviation(joined(asked, [part], VOCAB), wanted) < 1e-9


@pytest.mark.parametrize(
    "changed",
    [{"activation": "gelu"}, {"norm_eps": 1e-4}, {"projector_activation": "gelu_tanh"}],
    ids=lambda each: next(iter(each)),
)
def test_the_bound_sees_a_wrong_setting(changed: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_llava("clip", "llama", 7)
    save(model, tmp_path / "model")
    folder = tmp_path / "model"
    asked = made_llava("clip", "llama", "one rank", folder, placeholder=7, precision="fp32")
    vision = asked.modules["vision"]
    wrong = vision.model_copy(update={"model": vision.model.model_copy(update=changed)})
    asked = asked.model_copy(update={"modules": asked.modules | {"vision": wrong}})
    [part] = run_on_running_ranks(logits_on_rank, asked, tmp_path, world_size=1)
    wanted = wanted_logits(model, asked, torch.float32)
    assert deviation(joined(asked, [part], VOCAB), wanted) > 1e-5


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
