"""Decoders are those of `transformers`, number by number, from weights that `init_from` reads."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.hugging_face import (
    LAYOUTS,
    VOCAB,
    joined,
    logits_on_rank,
    made,
    save,
    tiny,
    tokens_of,
)
from tests.support.proof import failures, verdicts
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec
from tests.support.whole_models import (
    deviation,
)
from torch import Tensor

from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec


def wanted_logits(model: Any, made: Spec) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=tokens_of(made)).logits
    return logits.double()


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


# With heads of 8 numbers and theta 500, one wavelength stays, one is in between, two are stretched.
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}  # fmt: skip
# None is in between: one stays, three are stretched.
STEP = SCALING | {"high_freq_factor": 1.0}


@pytest.mark.parametrize(
    ("layout", "scaling"), [("one rank", SCALING), ("cp2", SCALING), ("one rank", STEP)]
)
def test_logits_of_a_scaled_rotary_embedding(
    layout: str, scaling: dict[str, float], tmp_path: Path
) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 500.0, **scaling}
    model = tiny("llama", rope_parameters=rope)
    save(model, tmp_path / "model")
    asked = made("llama", layout, tmp_path / "model", model={"rope_scaling": scaling})
    parts = run_on_running_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    wanted = wanted_logits(model, asked)
    assert deviation(joined(asked, parts, VOCAB), wanted) < 1e-5
    assert deviation(wanted_logits(tiny("llama"), asked), wanted) > 1e-4


LONGROPE = {
    "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.1, 1.5, 3.0],
}  # fmt: skip


@pytest.mark.parametrize("scaling", [SCALING, STEP, LONGROPE])
def test_gradients_with_a_scaled_rotary_embedding_are_those_of_one_rank(
    scaling: dict[str, Any],
) -> None:
    model = {"head_dim": 8, "rope_theta": 500.0, "rope_scaling": scaling}
    assert failures(verdicts(spec({"language": box(0, cp=2, model=model)}))) == []


@pytest.mark.parametrize("tp", [2, 4])
def test_gradients_with_biases_are_those_of_one_rank(tp: int) -> None:
    """Key and value biases, too, where tp ranks share a head; an epsilon that matters."""
    model = {"heads": 4, "kv_heads": 2, "qkv_bias": True, "norm_eps": 0.1}
    asked = spec({"language": box(0, tp=tp, model=model, sequence_parallel=tp == 4)})
    assert failures(verdicts(asked)) == []
