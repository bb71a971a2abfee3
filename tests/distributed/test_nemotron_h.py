"""A trained Nemotron-H is loaded by `transformers`, with experts and without."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tests.support.exports import exported, trained, with_sections
from tests.support.families import FAMILIES
from tests.support.nemotron_h import MOE_MODEL, loaded, made
from tests.support.whole_models import TinyModel, deviation, found_logits

from mimo_launch.spec.spec import Spec

PLAIN, EXPERTS = (FAMILIES[name] for name in ("nemotron_h", "nemotron_h with experts"))
LEARN: dict[str, Any] = {
    "train": {"steps": 2, "precision": "fp32"},
    "optimizer": {"lr": 1e-2},
}


def of_experts(layout: str, folder: Path | None, **moe: Any) -> Spec:
    return made(layout, folder, **MOE_MODEL | {"moe": MOE_MODEL["moe"] | moe})


def test_the_bound_sees_wrong_biases_of_a_router(tmp_path: Path) -> None:
    model, asked = EXPERTS.start("one rank", tmp_path)
    found = found_logits(asked, tmp_path)
    for name, bias in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            bias.zero_()
    assert deviation(found, EXPERTS.wanted(model, asked)) > 1e-3


def compare(family: TinyModel, again: Spec, run: Path) -> torch.Tensor:
    """Return logits of a spec that starts from an export, which are those of `transformers`."""
    found = found_logits(again, run / "again")
    assert deviation(found, family.wanted(loaded(run / "out"), again)) < 1e-5
    return found


def test_a_trained_model_is_loaded_by_transformers(tmp_path: Path) -> None:
    """Of random weights, without a folder that says what ours leaves out. Parallelism: pp 2."""
    asked = with_sections(made("pp2", None), **LEARN)
    exported(trained(asked, tmp_path / "run"), tmp_path / "out")
    compare(PLAIN, made("one rank", tmp_path / "out"), tmp_path)


def test_a_trained_model_with_experts_is_loaded_by_transformers(tmp_path: Path) -> None:
    """Its biases having moved; a second stage starts from them, too. Parallelism: pp 2, ep 3."""
    asked = with_sections(of_experts("pp2, ep3", None), **LEARN)
    exported(trained(asked, tmp_path / "run"), tmp_path / "out")
    moved = load_file(tmp_path / "out" / "model.safetensors")
    for layer in (1, 5):
        bias = moved[f"backbone.layers.{layer}.mixer.gate.e_score_correction_bias"]
        assert set((bias * 100).round().int().tolist()) <= {-2, -1, 0, 1, 2}
        assert bias.any()
    found = compare(EXPERTS, of_experts("one rank", tmp_path / "out"), tmp_path)
    second = of_experts("tp2", tmp_path / "run", aux_loss=0.1, bias_update_rate=0.0)
    assert deviation(found_logits(second, tmp_path / "second"), found) < 1e-5
