"""Decoders with experts are those of `transformers`, and back, from Mixtral to DeepSeek-V3."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.test_decoder_logits import wanted_logits
from tests.support.exports import (
    bits,
    exported,
    load,
    save_on_rank,
    tensors,
    trained,
    with_sections,
)
from tests.support.hugging_face import (
    VOCAB,
    joined,
    logits_on_rank,
    made,
    model_keys,
    save,
    tiny,
    tokens_of,
    widen,
    widen_softmax,
)
from tests.support.running_ranks import run_on_running_ranks
from tests.support.whole_models import OPTIMIZERS, deviation, step_of_torch, with_optimizer
from torch import Tensor

from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

EP2: dict[str, Any] = {"experts": {"ep": 2}}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("mixtral", "one rank", {}),
    ("mixtral", "tp2", EP2),
    ("qwen3_moe", "one rank", {}),
    ("qwen3_moe", "tp2 pp2", EP2 | {"sequence_parallel": True}),
    ("gpt_oss", "one rank", {}),
    ("gpt_oss", "cp2", EP2),
    ("gpt_oss", "tp2", {"experts": {"tp": 2}}),
    ("deepseek_v3", "one rank", {}),
    ("glm4_moe", "cp2", EP2),
    ("deepseek_v3", "tp2 pp2", EP2 | {"sequence_parallel": True}),
]
SELDOM = [("gpt_oss", "tp2 pp2", EP2), ("gpt_oss", "colocated dp2", {}), ("gpt_oss", "pp2", {})]
SELDOM += [("deepseek_v3", each, {}) for each in ("tp4", "cp2", "pp2", "colocated dp2")]
SELDOM += [("glm4_moe", each, {}) for each in ("one rank", "tp4", "pp2", "colocated dp2")]
SELDOM += [("glm4_moe", "tp2 pp2", EP2 | {"sequence_parallel": True})]
KINDS = ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "glm4_moe"]


def logits(asked: Spec, run: Path) -> Tensor:
    parts = run_ranks(logits_on_rank, asked, run, world_size=world_size(asked))
    return joined(asked, parts, VOCAB)


def in_float64(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a model of transformers compute in float64 all that it computes in float32."""
    widen(model)
    # The others have no kernel for float64, and routers say fp32 in three ways.
    model.set_experts_implementation("eager")
    widen_softmax(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.Tensor, "type", lambda x, dtype: x.double())


@pytest.mark.parametrize(
    ("kind", "layout", "more"),
    [*CASES, *(pytest.param(*each, marks=pytest.mark.sweep) for each in SELDOM)],
)
def test_logits_are_those_of_transformers(
    kind: str, layout: str, more: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny(kind)
    save(model, tmp_path / "model")
    asked = made(kind, layout, tmp_path / "model", **more)
    found = logits(asked, tmp_path)
    assert deviation(found, wanted_logits(model, asked)) < 1e-5
    other = tiny(kind, num_experts_per_tok=1)
    assert deviation(found, wanted_logits(other, asked)) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers_in_float64(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(kind, torch.float64)
    save(model, tmp_path / "model")
    asked = made(kind, "one rank", tmp_path / "model", "fp64")
    found = logits(asked, tmp_path)
    in_float64(model, monkeypatch)
    assert deviation(found, wanted_logits(model, asked)) < 1e-9


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        pytest.param(*each, marks=() if each == ("gpt_oss", "adamw") else pytest.mark.sweep)
        for each in product(KINDS, OPTIMIZERS)
    ],
)
def test_a_step_is_that_of_plain_torch(
    kind: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same texts, by the names of its tensors, in float64."""
    model = tiny(kind, torch.float64)
    save(model, tmp_path / "model")
    moe = {**model_keys(kind)["moe"], "aux_loss": 0.0}
    asked = made(kind, "one rank", tmp_path / "model", "fp64", model={"moe": moe})
    asked = with_optimizer(asked, optimizer)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp64")

    in_float64(model, monkeypatch)
    step_of_torch(model, model(input_ids=tokens_of(asked)).logits, asked, optimizer)
    save(model, tmp_path / "wanted")
    wanted, before = tensors(tmp_path / "wanted"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert not torch.equal(tensor, before[name]) or name.endswith("correction_bias")
        assert (found[name] - tensor).abs().max() < 1e-9, name


@pytest.mark.parametrize("kind", KINDS)
def test_an_untouched_model_comes_out_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """Parallelism: tp 2, ep 2. `transformers` finds a place for every tensor."""
    save(tiny(kind, torch.bfloat16), tmp_path / "model")
    asked = with_sections(made(kind, "tp2", tmp_path / "model", **EP2))
    run_on_running_ranks(save_on_rank, asked, tmp_path / "run", world_size=world_size(asked))
    found, wanted = exported(tmp_path / "run", tmp_path / "out"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    assert all(bits(found[name]) == bits(wanted[name]) for name in wanted)
    load("AutoModelForCausalLM", tmp_path / "out")
