"""A vision transformer and a decoder of ours are the Qwen2-VL of `transformers`, number by number.

Both start from one folder; samples have several images of different sizes, or none.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.hugging_face import joined, logits_on_rank, save
from tests.support.qwen2_vl import LAYOUTS, VOCAB, made, tiny, wanted_logits, widen_all
from torch import Tensor

from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec


def logits(asked: Spec, run: Path) -> Tensor:
    parts = run_ranks(logits_on_rank, asked, run, world_size=world_size(asked))
    return joined(asked, parts, VOCAB)


def deviation(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference by the largest logit."""
    assert wanted.std() > 0.1
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(
    "layout",
    [pytest.param(x, marks=pytest.mark.sweep) if x == "tp4" else x for x in LAYOUTS],
)
def test_logits_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    model = tiny()
    save(model, tmp_path / "model")
    asked = made(layout, tmp_path / "model")
    assert deviation(logits(asked, tmp_path), wanted_logits(model, asked)) < 1e-5


def test_logits_are_those_of_transformers_in_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen2_vl import modeling_qwen2_vl as theirs

    monkeypatch.setattr(theirs, "apply_rotary_pos_emb_vision", theirs.apply_rotary_pos_emb_vision)
    model = tiny(torch.float64)
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model", "fp64")
    found = logits(asked, tmp_path)
    widen_all(model)
    assert deviation(found, wanted_logits(model, asked)) < 1e-9


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("language", {"mrope": (2, 1, 1)}),
        ("vision", {"positions": "sincos"}),
        ("vision", {"activation": "gelu"}),
    ],
    ids=["mrope", "positions", "activation"],
)
def test_the_bound_sees_a_wrong_setting(name: str, changed: dict[str, Any], tmp_path: Path) -> None:
    model = tiny()
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model")
    module = asked.modules[name]
    wrong = module.model_copy(update={"model": module.model.model_copy(update=changed)})
    asked = asked.model_copy(update={"modules": {**asked.modules, name: wrong}})
    assert deviation(logits(asked, tmp_path), wanted_logits(model, asked)) > 1e-4


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as versions before 4.52 wrote it."""
    vision, text = config.pop("vision_config"), config.pop("text_config")
    rope = text.pop("rope_parameters")
    vision["in_chans"] = vision.pop("in_channels")
    for key in ("model_type", "rope_parameters"):
        del vision[key]
    theirs = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    return {
        **text, **config, "vision_config": vision, "rope_theta": rope["rope_theta"],
        "rope_scaling": theirs,
    }  # fmt: skip


def nested(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as versions from 4.52 to 5 wrote it."""
    text, tied = config["text_config"], config.pop("tie_word_embeddings")
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {**rope, "type": "default"}}
    config["vision_config"]["model_type"] = "qwen2_vl"
    del config["vision_config"]["rope_parameters"]
    return {**config, "text_config": {**text, "tie_word_embeddings": tied}}


def renamed(name: str) -> str:
    """Return what versions from 4.52 to 5 called a tensor."""
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1)


@pytest.mark.parametrize(("configured", "named"), [(flat, str), (nested, renamed)])
def test_folders_of_older_versions_are_read(configured: Any, named: Any, tmp_path: Path) -> None:
    model = tiny(tied=True)
    folder = tmp_path / "model"
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(configured(config)))
    tensors = load_file(folder / "model.safetensors")
    save_file({named(name): each for name, each in tensors.items()}, folder / "model.safetensors")
    asked = made("one rank", folder, language={"tied": True})
    assert deviation(logits(asked, tmp_path), wanted_logits(model, asked)) < 1e-5
