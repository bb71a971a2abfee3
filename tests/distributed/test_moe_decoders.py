"""Decoders with experts are the Mixtral and Qwen3-MoE of `transformers`, and back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.test_decoder_logits import deviation, wanted_logits
from tests.support.exports import bits, exported, load, save_on_rank, tensors, with_sections
from tests.support.hugging_face import VOCAB, joined, logits_on_rank, made, save, tiny, widen
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
]


def logits(asked: Spec, run: Path) -> Tensor:
    parts = run_ranks(logits_on_rank, asked, run, world_size=world_size(asked))
    return joined(asked, parts, VOCAB)


@pytest.mark.parametrize(("kind", "layout", "more"), CASES)
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


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_logits_are_those_of_transformers_in_float64(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(kind, torch.float64)
    save(model, tmp_path / "model")
    asked = made(kind, "one rank", tmp_path / "model", "fp64")
    found = logits(asked, tmp_path)
    widen(model)
    # The others have no kernel for float64, and routers say fp32 in two ways.
    model.set_experts_implementation("eager")
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    assert deviation(found, wanted_logits(model, asked)) < 1e-9


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_an_untouched_model_comes_out_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """Parallelism: tp 2, ep 2. `transformers` finds a place for every tensor."""
    save(tiny(kind, torch.bfloat16), tmp_path / "model")
    asked = with_sections(made(kind, "tp2", tmp_path / "model", **EP2))
    run_ranks(save_on_rank, asked, tmp_path / "run", world_size=world_size(asked))
    found, wanted = exported(tmp_path / "run", tmp_path / "out"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    assert all(bits(found[name]) == bits(wanted[name]) for name in wanted)
    load("AutoModelForCausalLM", tmp_path / "out")
