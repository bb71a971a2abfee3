"""An audio encoder and a decoder of ours are a Voxtral, number by number."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.distributed.test_qwen_vl import OPTIMIZERS, deviation
from tests.support.exports import bits, exported, save_on_rank, tensors, trained, with_sections
from tests.support.hugging_face import ids_of, joined, logits_on_rank, save, widen
from tests.support.llava import LAYOUTS, VOCAB
from tests.support.voxtral import TOKEN, logits_of, made, tiny
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

OFTEN = {"cp2", "apart"}


def found_logits(asked: Spec, run: Path) -> Tensor:
    parts = run_ranks(logits_on_rank, asked, run, world_size=world_size(asked))
    return joined(asked, parts, VOCAB)


def wanted_logits(model: Any, asked: Spec) -> Tensor:
    with torch.no_grad():
        return logits_of(model, asked).double()


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_logits_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    """Text alone in some samples, several clips in others."""
    model = tiny()
    save(model, tmp_path / "model")
    asked = made(layout, tmp_path / "model")
    data = build_dataset(asked)
    clips = {len(data.images("train", each, "audio")) for each in ids_of(asked)}
    assert clips == {0, 1, 2}
    assert deviation(found_logits(asked, tmp_path), wanted_logits(model, asked)) < 1e-5


def test_logits_in_float64(tmp_path: Path) -> None:
    model = tiny(torch.float64)
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model", "fp64")
    found = found_logits(asked, tmp_path)
    widen(model)
    wanted = wanted_logits(model, asked)
    assert deviation(found, wanted) < 1e-9
    with torch.no_grad():
        model.model.multi_modal_projector.linear_2.weight[3] += 1e-3
    assert deviation(found, wanted_logits(model, asked)) > 1e-6


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adamw", marks=pytest.mark.sweep)])
def test_a_step_is_that_of_plain_torch(optimizer: str, tmp_path: Path) -> None:
    """On the same texts and clips, by name; norms and biases do not decay, positions stay."""
    model = tiny(torch.float64)
    save(model, tmp_path / "model")
    ours, theirs = OPTIMIZERS[optimizer]
    sections = {"optimizer": {**ours, "kind": optimizer, "clip": None}}
    asked = with_sections(made("one rank", tmp_path / "model", "fp64"), **sections)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp64")

    widen(model)
    data = build_dataset(asked)
    labels = torch.from_numpy(np.stack([data.text("train", each)[1] for each in ids_of(asked)]))
    F.cross_entropy(logits_of(model, asked).flatten(0, 1), labels.flatten()).backward()
    trains = {n: p for n, p in model.named_parameters() if p.requires_grad}
    groups = [
        {"params": [p for p in trains.values() if (p.dim() > 1) == which],
         "weight_decay": ours["weight_decay"] if which else 0.0}
        for which in (True, False)
    ]  # fmt: skip
    theirs(groups).step()
    save(model, tmp_path / "wanted")
    wanted, start = tensors(tmp_path / "wanted"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name] - tensor).abs().max() < 1e-9, name
        assert torch.equal(tensor, start[name]) == ("embed_positions" in name), name


def test_an_untouched_model_comes_out_bit_for_bit(tmp_path: Path) -> None:
    save(tiny(torch.bfloat16), tmp_path / "model")
    asked = with_sections(made("tp2", tmp_path / "model"))
    run_ranks(save_on_rank, asked, tmp_path / "run", world_size=world_size(asked))
    found, wanted = exported(tmp_path / "run", tmp_path / "out"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert bits(found[name]) == bits(tensor), name
    config, source = (
        json.loads((tmp_path / each / "config.json").read_text()) for each in ("out", "model")
    )
    assert (config["audio_token_id"], config["architectures"]) == (TOKEN, source["architectures"])
    for part in ("audio_config", "text_config"):
        assert {key: config[part].get(key) for key in source[part]} == source[part]
