"""Hybrid models with experts are the Nemotron-H of `transformers`, number by number, and back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.distributed.test_nemotron_h import ours, wanted_logits
from tests.support.exports import bits, exported, save_on_rank, tensors, trained, with_sections
from tests.support.hugging_face import save
from tests.support.nemotron_h import (
    MOE_CONFIG,
    MOE_LAYOUTS,
    MOE_MODEL,
    loaded,
    made,
    tiny,
    widened,
)
from tests.support.running_ranks import run_on_running_ranks
from tests.support.whole_models import deviation
from torch import Tensor

from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec


def of_experts(layout: str, folder: Path | None, precision: str = "fp32", **moe: Any) -> Spec:
    return made(layout, folder, precision, **MOE_MODEL | {"moe": MOE_MODEL["moe"] | moe})


def biases(model: Any) -> list[Tensor]:
    return [x for name, x in model.named_buffers() if name.endswith("e_score_correction_bias")]


@pytest.mark.parametrize(
    "layout",
    [pytest.param(x, marks=pytest.mark.sweep if x in ("tp2", "ep2") else ()) for x in MOE_LAYOUTS],
)
def test_logits_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    model = tiny(**MOE_CONFIG)
    save(model, tmp_path / "model")
    asked = of_experts(layout, tmp_path / "model")
    assert deviation(ours(asked, tmp_path), wanted_logits(model, asked)) < 1e-5


def test_logits_are_those_of_transformers_in_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(torch.float64, **MOE_CONFIG)
    save(model, tmp_path / "model")
    asked = of_experts("one rank", tmp_path / "model", "fp64")
    found = ours(asked, tmp_path)
    widened(model)
    # The others have no kernel for float64.
    model.set_experts_implementation("eager")
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.Tensor, "type", lambda x, dtype: x.double())
    assert deviation(found, wanted_logits(model, asked)) < 1e-9


def test_the_bound_sees_a_wrong_setting(tmp_path: Path) -> None:
    """Of the same weights; a wrong bias, too."""
    model = tiny(**MOE_CONFIG)
    save(model, tmp_path / "model")
    asked = of_experts("one rank", tmp_path / "model")
    found = ours(asked, tmp_path)
    for change in (
        {"norm_topk_prob": False},
        {"routed_scaling_factor": 1.0},
        {"num_experts_per_tok": 2},
    ):
        other = tiny(**MOE_CONFIG | change)
        assert deviation(found, wanted_logits(other, asked)) > 1e-3
    for bias in biases(model):
        bias.zero_()
    assert deviation(found, wanted_logits(model, asked)) > 1e-3


def test_an_untouched_model_comes_out_bit_for_bit(tmp_path: Path) -> None:
    """Parallelism: ep 2 over dp 2. The biases are in fp32, as `transformers` keeps them."""
    model = tiny(torch.bfloat16, **MOE_CONFIG)
    for bias in biases(model):
        bias.data = bias.float() + 1e-4
    save(model, tmp_path / "model")
    asked = with_sections(of_experts("ep2", tmp_path / "model"))
    run_on_running_ranks(save_on_rank, asked, tmp_path / "run", world_size=world_size(asked))
    found, wanted = exported(tmp_path / "run", tmp_path / "out"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    assert all(bits(found[name]) == bits(wanted[name]) for name in wanted)


def test_a_trained_model_is_loaded_by_transformers(tmp_path: Path) -> None:
    """Of random weights, its biases having moved; a second stage starts from them, too.

    Parallelism: pp 2, ep 3.
    """
    learn = {"train": {"steps": 2, "precision": "fp32"}, "optimizer": {"lr": 1e-2}}
    asked = with_sections(of_experts("pp2, ep3", None), **learn)
    exported(trained(asked, tmp_path / "run"), tmp_path / "out")
    moved = load_file(tmp_path / "out" / "model.safetensors")
    for layer in (1, 5):
        bias = moved[f"backbone.layers.{layer}.mixer.gate.e_score_correction_bias"]
        assert set((bias * 100).round().int().tolist()) <= {-2, -1, 0, 1, 2}
        assert bias.any()
    again = of_experts("one rank", tmp_path / "out")
    model = loaded(tmp_path / "out")
    found = ours(again, tmp_path / "again")
    assert deviation(found, wanted_logits(model, again)) < 1e-5
    second = of_experts("tp2", tmp_path / "run", aux_loss=0.1, bias_update_rate=0.0)
    assert deviation(ours(second, tmp_path / "second"), found) < 1e-5
