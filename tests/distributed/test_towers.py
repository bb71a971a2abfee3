"""A tower alone is that of `transformers`, number by number, on any layout."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.support import aimv2, aimv2_native, dinov2, dinov2_registers, dinov3, radio
from tests.support.encoders_alone import assert_step, assert_untouched
from tests.support.exports import tensors
from tests.support.hugging_face import save
from tests.support.llava import LAYOUTS
from tests.support.radio import deviations, features_on_rank
from tests.support.running_ranks import run_on_running_ranks

from mimo_launch.layout.layout import world_size

TOWERS: Any = {
    "radio": radio, "dinov3": dinov3, "dinov2": dinov2, "aimv2": aimv2,
    "dinov2 with registers": dinov2_registers, "native aimv2": aimv2_native,
}  # fmt: skip
OFTEN = {"apart", "cp2"}
SWEEP = pytest.mark.sweep
TOWERS_AND_MLPS = [
    pytest.param(tower, gated, marks=SWEEP if gated == (tower == "radio") else ())
    for tower in TOWERS
    for gated in (False, True)
]


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else SWEEP) for x in LAYOUTS]
)
def test_features_are_those_of_transformers(tower: str, layout: str, tmp_path: Path) -> None:
    of = TOWERS[tower]
    model = of.tiny()
    save(model, tmp_path / "model")
    asked = of.made(layout, tmp_path / "model")
    parts = run_on_running_ranks(features_on_rank, asked, tmp_path, world_size=world_size(asked))
    found = deviations(partial(of.features_of, model), asked, parts)
    assert found
    assert max(found) < 1e-5


@pytest.mark.parametrize(("tower", "gated"), TOWERS_AND_MLPS)
def test_features_in_float64(tower: str, tmp_path: Path, *, gated: bool) -> None:
    of = TOWERS[tower]
    theirs, ours = of.GATED if gated else ({}, {})
    model = of.tiny(torch.float64, **theirs)
    save(model, tmp_path / "model")
    asked = of.made("one rank", tmp_path / "model", "fp64", **ours)
    [seen] = run_on_running_ranks(features_on_rank, asked, tmp_path, world_size=1)
    of.widen(model)
    assert max(deviations(partial(of.features_of, model), asked, [seen])) < 1e-9


@pytest.mark.parametrize(("tower", "gated"), TOWERS_AND_MLPS)
def test_an_untouched_tower_comes_out_bit_for_bit(
    tower: str, tmp_path: Path, *, gated: bool
) -> None:
    """With what our tower does not have: numbers of a conditioner, an embedding of videos."""
    of = TOWERS[tower]
    theirs, ours = of.GATED if gated else ({}, {})
    more = {"video_temporal_patch_size": 2} if tower == "radio" else {}
    save(of.tiny(torch.bfloat16, **more, **theirs), tmp_path / "model")
    assert_untouched(of.made("tp2", tmp_path / "model", **ours), "vision", tmp_path)


def test_files_may_leave_out_layer_scale(tmp_path: Path) -> None:
    """As published ones do: it then begins as 1, as `transformers` has it."""
    folder = tmp_path / "model"
    save(radio.tiny(), folder)
    kept = {name: x for name, x in tensors(folder).items() if "layer_scale" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    asked = radio.made("tp2", folder)
    parts = run_on_running_ranks(features_on_rank, asked, tmp_path, world_size=2)
    model = type(radio.tiny()).from_pretrained(folder)
    assert float(model.encoder.layer[1].layer_scale2.lambda1.detach().max()) == 1
    assert max(deviations(partial(radio.features_of, model), asked, parts)) < 1e-5


@pytest.mark.parametrize("name", TOWERS)
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=SWEEP)])
def test_a_step_is_that_of_plain_torch(name: str, optimizer: str, tmp_path: Path) -> None:
    """Of the tower, a projector that starts from random values, and a Llama, by name."""
    assert_step(TOWERS[name], "vision", optimizer, tmp_path)
