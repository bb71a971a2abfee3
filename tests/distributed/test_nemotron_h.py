"""Hybrid models are the Nemotron-H of `transformers`, number by number, from weights and back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.exports import bits, exported, save_on_rank, tensors, trained, with_sections
from tests.support.hugging_face import joined, logits_on_rank, save, tokens_of
from tests.support.nemotron_h import LAYOUTS, VOCAB, loaded, made, tiny, widened
from tests.support.whole_models import deviation
from torch import Tensor

from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec


def wanted_logits(model: Any, asked: Spec) -> Tensor:
    """Return what transformers says, and for a further word the mean of all logits."""
    with torch.no_grad():
        logits: Tensor = model(input_ids=tokens_of(asked)).logits
    grown = asked.language.model.vocab - VOCAB
    return torch.cat([logits, *[logits.mean(-1, keepdim=True)] * grown], dim=-1).double()


def ours(asked: Spec, run: Path) -> Tensor:
    parts = run_ranks(logits_on_rank, asked, run, world_size=world_size(asked))
    return joined(asked, parts, asked.language.model.vocab)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    model = tiny()
    save(model, tmp_path / "model")
    asked = made(layout, tmp_path / "model")
    assert deviation(ours(asked, tmp_path), wanted_logits(model, asked)) < 1e-5


def test_logits_are_those_of_transformers_in_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(torch.float64)
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model", "fp64")
    found = ours(asked, tmp_path)
    widened(model)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    assert deviation(found, wanted_logits(model, asked)) < 1e-9


def test_the_bound_sees_the_least_time_step(tmp_path: Path) -> None:
    """The models of this file have heads whose steps are shorter."""
    model = tiny()
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model")
    sizes = asked.language.model.mamba.model_copy(update={"min_step": 0.0})
    changed = asked.language.model.model_copy(update={"mamba": sizes})
    wrong = asked.language.model_copy(update={"model": changed})
    wrong = asked.model_copy(update={"modules": {"language": wrong}})
    assert deviation(ours(wrong, tmp_path), wanted_logits(model, asked)) > 1e-3


def test_an_untouched_model_comes_out_bit_for_bit(tmp_path: Path) -> None:
    """Parallelism: tp 2 beside an encoder; fused tensors are put together again."""
    save(tiny(torch.bfloat16), tmp_path / "model")
    asked = with_sections(made("tp2", tmp_path / "model"))
    run_ranks(save_on_rank, asked, tmp_path / "run", world_size=world_size(asked))
    found, wanted = exported(tmp_path / "run", tmp_path / "out"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    assert all(bits(found[name]) == bits(wanted[name]) for name in wanted)


def test_a_trained_model_is_loaded_by_transformers(tmp_path: Path) -> None:
    """Of random weights, without a folder that says what ours leaves out. Parallelism: pp 2."""
    learn = {"train": {"steps": 2, "precision": "fp32"}, "optimizer": {"lr": 1e-2}}
    asked = with_sections(made("pp2", None), **learn)
    exported(trained(asked, tmp_path / "run"), tmp_path / "out")
    again = made("one rank", tmp_path / "out")
    model = loaded(tmp_path / "out")
    assert deviation(ours(again, tmp_path / "again"), wanted_logits(model, again)) < 1e-5
