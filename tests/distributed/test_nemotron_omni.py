"""A tower and a hybrid of ours are a Nemotron-H Omni of `transformers`, number by number."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.distributed.test_qwen_vl import OPTIMIZERS, deviation
from tests.support.exports import bits, exported, save_on_rank, tensors, trained, with_sections
from tests.support.hugging_face import ids_of, joined, logits_on_rank, save
from tests.support.llava import LAYOUTS
from tests.support.nemotron_h import VOCAB
from tests.support.nemotron_omni import in_float64, logits_of, made, tiny
from tests.support.running_ranks import run_on_running_ranks
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

OFTEN = {"apart"}


def found_logits(asked: Spec, run: Path) -> Tensor:
    parts = run_on_running_ranks(logits_on_rank, asked, run, world_size=world_size(asked))
    return joined(asked, parts, VOCAB)


def wanted_logits(model: Any, asked: Spec) -> Tensor:
    with torch.no_grad():
        return logits_of(model, asked).double()


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_logits_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    """Text alone in some samples, several images of different sizes in others."""
    model = tiny()
    save(model, tmp_path / "model")
    asked = made(layout, tmp_path / "model")
    assert deviation(found_logits(asked, tmp_path), wanted_logits(model, asked)) < 1e-5


@pytest.mark.parametrize("predicts", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_logits_in_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, predicts: bool
) -> None:
    """Also with the norm behind the tower that layers for further tokens bring along."""
    model = tiny(torch.float64, predicts=predicts)
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model", "fp64", final_norm=predicts)
    found = found_logits(asked, tmp_path)
    in_float64(model, monkeypatch)
    assert deviation(found, wanted_logits(model, asked)) < 1e-9


@pytest.mark.sweep
@pytest.mark.parametrize("wrong", ["projector_activation", "projector_norm_eps", "interpolation"])
def test_the_bound_sees_a_wrong_setting(wrong: str, tmp_path: Path) -> None:
    changed = {
        "projector_activation": "gelu", "projector_norm_eps": 0.5, "interpolation": "bilinear",
    }  # fmt: skip
    model = tiny()
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model")
    module = asked.modules["vision"]
    other = module.model.model_copy(update={wrong: changed[wrong]})
    module = module.model_copy(update={"model": other})
    asked = asked.model_copy(update={"modules": {**asked.modules, "vision": module}})
    assert deviation(found_logits(asked, tmp_path), wanted_logits(model, asked)) > 1e-4


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adamw", marks=pytest.mark.sweep)])
def test_a_step_is_that_of_plain_torch(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same texts and images, by name; the embedding of videos is left as it was."""
    model = tiny(torch.float64)
    save(model, tmp_path / "model")
    ours, theirs = OPTIMIZERS[optimizer]
    sections = {"optimizer": {**ours, "kind": optimizer, "clip": None}}
    asked = with_sections(made("one rank", tmp_path / "model", "fp64"), **sections)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp64")

    dataset = build_dataset(asked)
    labels = torch.from_numpy(
        np.stack([dataset.text("train", sample)[1] for sample in ids_of(asked)])
    )
    with monkeypatch.context() as patched:
        in_float64(model, patched)
        F.cross_entropy(logits_of(model, asked).flatten(0, 1), labels.flatten()).backward()
    every = dict(model.named_parameters())
    plain = ("A_log", "dt_bias", "conv1d.bias", ".D")
    decays = {name: x.dim() > 1 and not name.endswith(plain) for name, x in every.items()}
    groups = [
        {"params": [x for name, x in every.items() if decays[name] == which],
         "weight_decay": ours["weight_decay"] if which else 0.0}
        for which in (True, False)
    ]  # fmt: skip
    theirs(groups).step()
    save(model, tmp_path / "wanted")
    wanted, start = tensors(tmp_path / "wanted"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name] - tensor).abs().max() < 1e-9, name
        is_constant = name.endswith(("summary_idxs", "video_embedder.weight", "correction_bias"))
        assert torch.equal(tensor, start[name]) == is_constant, name


@pytest.mark.parametrize("predicts", [False, True])
def test_an_untouched_model_comes_out_bit_for_bit(tmp_path: Path, *, predicts: bool) -> None:
    """With the audio tower that we leave out, and settings that we do not know."""
    save(tiny(torch.bfloat16, hears=True, predicts=predicts), tmp_path / "model")
    asked = with_sections(made("tp2", tmp_path / "model", final_norm=predicts))
    run_on_running_ranks(save_on_rank, asked, tmp_path / "run", world_size=world_size(asked))
    found, wanted = exported(tmp_path / "run", tmp_path / "out"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert bits(found[name]) == bits(tensor), name
    config, source = (
        json.loads((tmp_path / each / "config.json").read_text()) for each in ("out", "model")
    )
    for part in ("vision_config", "text_config", "audio_config"):
        kept = source[part].keys() - {"layer_types"}
        assert {key: config[part].get(key) for key in kept} == {
            key: source[part][key] for key in kept
        }
    assert {key for key in source if config.get(key) != source[key]} <= {
        "vision_config", "text_config", "transformers_version",
    }  # fmt: skip
