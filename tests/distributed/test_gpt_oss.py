"""The parts of a GPT-OSS over every layout: sinks, YaRN, clamped gates, biases; its folders."""

from typing import Any

import pytest
import torch
from tests.support.lists import by_lists
from tests.support.planted_sinks import EXPERTS, sunk
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION

from mimo_launch.hugging_face.architectures import Modules, alone
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.layers.pointwise import clamped_swiglu
from mimo_launch.spec.load import model_from_data

LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "experts over ep": {"dp": 2, **EXPERTS},
    "experts split, tp 2": {"tp": 2, **EXPERTS, "experts": {"tp": 2}},
    "experts split, tp 2, sequence parallel": {
        "tp": 2, "dp": 2, "sequence_parallel": True, **EXPERTS, "experts": {"tp": 2, "ep": 2},
    },
}  # fmt: skip
OFTEN = {"tp 2, cp 2, documents", "experts split, tp 2"}


@pytest.mark.parametrize(
    "layout",
    [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS],
)
def test_gradients_with_sinks_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(sunk(**LAYOUTS[layout]))) == []


@pytest.mark.parametrize(
    "layout",
    [pytest.param(x, marks=() if x == "cp 4, packed" else pytest.mark.sweep) for x in LAYOUTS],
)
def test_sinks_over_lists_are_those_of_masks(layout: str) -> None:
    """With a loop for the kernel, from which the backward makes the weights anew."""
    assert failures(verdicts(sunk(**LAYOUTS[layout]), prepare=by_lists)) == []


def test_clamped_gates_are_those_of_transformers() -> None:
    """On both sides of every bound; gradients, too."""
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    class Theirs:
        alpha, limit = 1.702, 7.0

    x = (torch.randn(64, 16, dtype=torch.float64) * 8).requires_grad_()
    pairs = x.unflatten(1, (2, 8)).transpose(1, 2).flatten(1)
    grad = torch.randn(64, 8, dtype=torch.float64)
    outs = clamped_swiglu(x), GptOssExperts._apply_gate(Theirs(), pairs)
    results = [(out, *torch.autograd.grad(out, x, grad, retain_graph=True)) for out in outs]
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert (x.abs() > 7).any()


PUBLISHED = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32, "vocab_size": 201088,
    "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8, "sliding_window": 128, "tie_word_embeddings": False,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 150000, "attention_bias": True,
    "experts_per_token": 4, "num_experts_per_tok": 4, "swiglu_limit": 7.0,
    "max_position_embeddings": 131072, "router_aux_loss_coef": 0.9,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn", "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head",
        ],
    },
}  # fmt: skip


def test_the_published_configuration_is_read_and_written() -> None:
    part = part_of(PUBLISHED, "decoder")
    assert part.not_computed() == ()
    keys = part.keys()
    assert keys["sliding_window"] == {
        "size": 128, "full": tuple(range(1, 24, 2)), "rope_theta": None,
    }  # fmt: skip
    assert part.training() == {"aux_loss": 0.9}
    model = model_from_data({"kind": "decoder", **keys})
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert found.name == "GptOssForCausalLM"
    assert found.parts["language"].keys() == keys
    # What is not written is what transformers takes.
    short = {key: PUBLISHED[key] for key in ("model_type", "num_hidden_layers")}
    assert part_of(short | {"num_local_experts": 32}, "decoder").keys() == keys


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config: "),
        ({"swiglu_limit": 10.0}, "swiglu_limit: 10.0"),
        ({"attention_bias": False}, "attention_bias: false"),
        ({"layer_types": ["chunked_attention"] * 24}, "layer_types: chunked_attention"),
    ],
)
def test_what_is_not_computed_is_refused(changed: dict[str, Any], words: str) -> None:
    [found] = part_of({**PUBLISHED, **changed}, "decoder").not_computed()
    assert found.startswith(words)
