"""A tower alone is that of `transformers`, number by number, on any layout."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.support import aimv2, aimv2_native, dinov2, dinov2_registers, dinov3, radio
from tests.support.exports import (
    bits,
    exported,
    save_on_rank,
    tensors,
    trained,
    with_sections,
)
from tests.support.hugging_face import ids_of, model_keys, save, tokens_of, widen
from tests.support.hugging_face import tiny as tiny_text
from tests.support.llava import LAYOUTS
from tests.support.radio import TOKEN, deviations, features_on_rank
from tests.support.running_ranks import run_on_running_ranks
from tests.support.whole_models import OPTIMIZERS

from mimo_launch.data.build import build_dataset
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
    asked = with_sections(of.made("tp2", tmp_path / "model", **ours))
    run_on_running_ranks(save_on_rank, asked, tmp_path / "run", world_size=world_size(asked))
    exported(tmp_path / "run", tmp_path / "out", ["vision"])
    found, wanted = tensors(tmp_path / "out" / "vision"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert bits(found[name]) == bits(tensor), name


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
    of = TOWERS[name]
    tower, text = of.tiny(torch.float64), tiny_text("llama", torch.float64)
    save(tower, tmp_path / "tower")
    save(text, tmp_path / "text")
    ours, theirs = OPTIMIZERS[optimizer]
    words = {"model": model_keys("llama"), "init_from": str(tmp_path / "text")}
    asked = with_sections(
        of.made("one rank", tmp_path / "tower", "fp64", words),
        optimizer={**ours, "kind": optimizer, "clip": None},
    )
    run_on_running_ranks(save_on_rank, asked, tmp_path / "start", world_size=1)
    exported(tmp_path / "start", tmp_path / "before", ["vision"])
    ends = load_file(tmp_path / "before" / "vision" / "projector.safetensors")
    ends = {name.removeprefix("projector."): each.requires_grad_() for name, each in ends.items()}
    run = trained(asked, tmp_path / "run")
    exported(run, tmp_path / "out", ["vision", "language"], dtype="fp64")

    of.widen(tower)
    widen(text)
    dataset, logits = build_dataset(asked), []
    for sample, tokens in zip(ids_of(asked), tokens_of(asked), strict=True):
        embedded = text.get_input_embeddings()(tokens)
        if images := dataset.images("train", sample, "vision"):
            x = torch.cat([of.features_of(tower, image) for image in images])
            x = F.gelu(F.linear(x, ends["up.weight"], ends["up.bias"]))
            rows = F.linear(x, ends["down.weight"], ends["down.bias"])
            embedded = embedded.masked_scatter((tokens == TOKEN)[:, None], rows)
        logits.append(text(inputs_embeds=embedded[None]).logits)
    labels = np.stack([dataset.text("train", sample)[1] for sample in ids_of(asked)])
    F.cross_entropy(torch.cat(logits).flatten(0, 1), torch.from_numpy(labels).flatten()).backward()
    every = [*tower.parameters(), *text.parameters(), *ends.values()]
    decay = ours["weight_decay"]
    theirs(
        [
            {"params": [x for x in every if x.dim() > 1], "weight_decay": decay},
            {"params": [x for x in every if x.dim() == 1], "weight_decay": 0.0},
        ]
    ).step()
    for model, was, module in ((tower, "tower", "vision"), (text, "text", "language")):
        save(model, tmp_path / f"{module} wanted")
        wanted, found = tensors(tmp_path / f"{module} wanted"), tensors(tmp_path / "out" / module)
        start = tensors(tmp_path / was)
        assert found.keys() == wanted.keys()
        for each, tensor in wanted.items():
            assert (found[each] - tensor).abs().max() < 1e-9, each
            # Biases of keys change no score against another, and have gradients of rounding alone.
            if re.search(r"key\.bias|k_proj\.bias", each):
                continue
            is_constant = re.search(of.CONSTANT, each) is not None
            assert torch.equal(tensor, start[each]) == is_constant, each
    found = load_file(tmp_path / "out" / "vision" / "projector.safetensors")
    for each, tensor in ends.items():
        assert (found[f"projector.{each}"] - tensor).abs().max() < 1e-9, each
