"""Decoders are those of `transformers`, number by number, from weights that `init_from` reads."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.exports import exported, tensors, trained
from tests.support.hugging_face import (
    KINDS,
    LAYOUTS,
    VOCAB,
    joined,
    logits_on_rank,
    made,
    save,
    tiny,
    tokens_of,
    widen,
    widen_softmax,
)
from tests.support.proof import failures, verdicts
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec
from tests.support.whole_models import (
    OPTIMIZERS,
    deviation,
    labels_of,
    moved_by_torch,
    with_optimizer,
)
from torch import Tensor

from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec


def wanted_logits(model: Any, made: Spec) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=tokens_of(made)).logits
    return logits.double()


SELDOM = {
    (kind, layout)
    for kind in ("glm", "glm4", "gemma2", "gemma3_text", "ministral3")
    for layout in LAYOUTS.keys() - {"cp2"}
}


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(*each, marks=pytest.mark.sweep if each in SELDOM else ())
        for each in product(KINDS, LAYOUTS)
    ],
)
def test_logits_are_those_of_transformers(kind: str, layout: str, tmp_path: Path) -> None:
    model = tiny(kind)
    save(model, tmp_path / "model")
    asked = made(kind, layout, tmp_path / "model")
    parts = run_on_running_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    wanted = wanted_logits(model, asked)
    # A word that the file does not have gets the mean of the others' rows, so of their logits
    # before a cap.
    grown, cap = asked.language.model.vocab - VOCAB, asked.language.model.logit_softcap
    mean = (wanted if cap is None else (wanted / cap).atanh() * cap).mean(-1, keepdim=True)
    mean = mean if cap is None else (mean / cap).tanh() * cap
    wanted = torch.cat([wanted, *[mean] * grown], dim=-1)
    assert deviation(joined(asked, parts, VOCAB + grown), wanted) < 1e-5


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        pytest.param(*each, marks=() if each == ("qwen3", "adamw") else pytest.mark.sweep)
        for each in product(KINDS, OPTIMIZERS)
    ],
)
def test_a_step_is_that_of_plain_torch_with_the_models_own_loss(
    kind: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names of its tensors, in float64; `transformers` takes the mean over labels."""
    model = tiny(kind, torch.float64)
    save(model, tmp_path / "model")
    asked = with_optimizer(made(kind, "one rank", tmp_path / "model", "fp64"), optimizer)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp64")

    widen(model)
    widen_softmax(monkeypatch)
    # The loss would be taken in fp32.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    tokens, labels = tokens_of(asked), labels_of(asked)
    # Labels that are the tokens would leave out the last place, whose label is in no sequence.
    loss = model(input_ids=tokens, labels=tokens, shift_labels=labels).loss
    loss.backward()
    moved_by_torch(model, optimizer)
    save(model, tmp_path / "wanted")
    wanted, before = tensors(tmp_path / "wanted"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert not torch.equal(tensor, before[name]), name
        # One bias for all keys of a query changes nothing.
        assert name.endswith("k_proj.bias") or (found[name] - tensor).abs().max() < 1e-9, name


WINDOW = {"size": 5, "full": [0]}
# In the configuration of a kind, and in our model. Qwen2 slides behind its first layer, in Mistral,
# Mixtral and Qwen3-MoE every layer does.
WINDOWS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen2": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        {"sliding_window": WINDOW},
    ),
    "qwen3, by layer": (
        "qwen3",
        {
            "use_sliding_window": True, "sliding_window": 5,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        {"sliding_window": WINDOW},
    ),
    "mistral": (
        "mistral", {"sliding_window": 5}, {"sliding_window": {"size": 5}, "norm_eps": 1e-6},
    ),
    "mixtral": ("mixtral", {"sliding_window": 5}, {"sliding_window": {"size": 5}}),
    "qwen3_moe": (
        "qwen3_moe",
        {"use_sliding_window": True, "sliding_window": 5},
        {"sliding_window": {"size": 5}},
    ),
}  # fmt: skip
OFTEN = {("qwen2", "cp2"), ("mistral", "one rank")}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(*each, marks=() if each in OFTEN else pytest.mark.sweep)
        for each in product(WINDOWS, LAYOUTS)
    ],
)
def test_logits_with_windows_are_those_of_transformers(
    name: str, layout: str, tmp_path: Path
) -> None:
    kind, settings, ours = WINDOWS[name]
    model = tiny(kind, **settings)
    save(model, tmp_path / "model")
    asked = made(kind, layout, tmp_path / "model", model=ours)
    parts = run_on_running_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    found = joined(asked, parts, asked.language.model.vocab)[..., :VOCAB]
    assert deviation(found, wanted_logits(model, asked)) < 1e-5
    wider = tiny(kind, **settings | {"sliding_window": 6})
    assert deviation(wanted_logits(wider, asked), wanted_logits(model, asked)) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers_in_float64(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(kind, torch.float64)
    save(model, tmp_path / "model")
    widen(model)
    widen_softmax(monkeypatch)
    asked = made(kind, "one rank", tmp_path / "model", "fp64")
    [part] = run_ranks(logits_on_rank, asked, tmp_path, world_size=1)
    assert deviation(joined(asked, [part], VOCAB), wanted_logits(model, asked)) < 1e-9


@pytest.mark.parametrize(
    "changed", [{"norm_eps": 1e-4}, {"rope_theta": 400.0}], ids=lambda each: next(iter(each))
)
def test_the_bound_sees_a_wrong_setting(changed: dict[str, float], tmp_path: Path) -> None:
    model = tiny("llama")
    save(model, tmp_path / "model")
    asked = made("llama", "one rank", tmp_path / "model")
    update = {"model": asked.language.model.model_copy(update=changed)}
    wrong = asked.language.model_copy(update=update)
    asked = asked.model_copy(update={"modules": {"language": wrong}})
    [part] = run_on_running_ranks(logits_on_rank, asked, tmp_path, world_size=1)
    assert deviation(joined(asked, [part], VOCAB), wanted_logits(model, asked)) > 1e-5


# With heads of 8 numbers and theta 500, one wavelength stays, one is in between, two are stretched.
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}  # fmt: skip


@pytest.mark.parametrize("layout", ["one rank", "cp2"])
def test_logits_of_a_scaled_rotary_embedding(layout: str, tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 500.0, **SCALING}
    model = tiny("llama", rope_parameters=rope)
    save(model, tmp_path / "model")
    asked = made("llama", layout, tmp_path / "model", model={"rope_scaling": SCALING})
    parts = run_on_running_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    wanted = wanted_logits(model, asked)
    assert deviation(joined(asked, parts, VOCAB), wanted) < 1e-5
    assert deviation(wanted_logits(tiny("llama"), asked), wanted) > 1e-4


def test_gradients_with_a_scaled_rotary_embedding_are_those_of_one_rank() -> None:
    model = {"head_dim": 8, "rope_theta": 500.0, "rope_scaling": SCALING}
    assert failures(verdicts(spec({"language": box(0, cp=2, model=model)}))) == []


@pytest.mark.parametrize("tp", [2, 4])
def test_gradients_with_biases_are_those_of_one_rank(tp: int) -> None:
    """Key and value biases, too, where tp ranks share a head; an epsilon that matters."""
    model = {"heads": 4, "kv_heads": 2, "qkv_bias": True, "norm_eps": 0.1}
    asked = spec({"language": box(0, tp=tp, model=model, sequence_parallel=tp == 4)})
    assert failures(verdicts(asked)) == []
