"""Latent attention and experts in groups over every layout; folders of DeepSeek-V3."""

from typing import Any

import pytest
from tests.support.lists import by_lists
from tests.support.planted_latent import EXPERTS, MLA, latent
from tests.support.proof import failures, verdicts

from mimo_launch.hugging_face.architectures import Modules, alone
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.load import model_from_data

LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp 2": {"tp": 2},
    "tp 4, sequence parallel": {"tp": 4, "sequence_parallel": True},
    "cp 4, packed": {"cp": 4, "data": {"packing": True}},
    "pp 2, full sharding": {"pp": 2, "sharding": "full"},
    "dp 2, recompute": {"dp": 2, "recompute": "full"},
    "tp 2, cp 2, sequence parallel, documents": {
        "tp": 2, "cp": 2, "sequence_parallel": True, "data": {"max_documents": 3},
    },
    "queries of the stream, tp 2": {"tp": 2, "model": {"mla": {**MLA, "q_rank": None}}},
    "windows, values as large as keys": {
        "cp": 2,
        "model": {
            "mla": {**MLA, "v_head_dim": 10, "interleaved": False}, "attention_sinks": True,
            "sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0},
        },
    },
    "experts over ep": {"dp": 2, **EXPERTS},
    "experts, tp 2, pp 2": {"tp": 2, "pp": 2, "sequence_parallel": True, **EXPERTS},
}  # fmt: skip
OFTEN = {"tp 2, cp 2, sequence parallel, documents", "experts, tp 2, pp 2"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_of_latent_attention_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(latent(**LAYOUTS[layout]))) == []


@pytest.mark.sweep
def test_latent_attention_goes_over_lists() -> None:
    """Values are smaller than keys, and filled up with zeros."""
    made = latent(cp=2, data={"packing": True}, model={"attention_sinks": True})
    assert failures(verdicts(made, prepare=by_lists)) == []


PUBLISHED = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
    "n_shared_experts": 1, "n_routed_experts": 256, "ep_size": 1, "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4,
    "num_experts_per_tok": 8, "moe_layer_freq": 1, "first_k_dense_replace": 3,
    "norm_topk_prob": True, "scoring_func": "sigmoid", "hidden_act": "silu",
    "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "attention_bias": False, "tie_word_embeddings": False,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
}  # fmt: skip


def test_the_published_configuration_is_read_and_written() -> None:
    part = part_of(PUBLISHED, "decoder")
    assert part.not_computed() == ()
    keys = part.keys()
    assert keys["query_pre_attn_scalar"] == pytest.approx(192 / 1.3688879454113936**4)
    assert (keys["head_dim"], keys["kv_heads"]) == (192, 128)
    model = model_from_data({"kind": "decoder", **keys})
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert found.name == "DeepseekV3ForCausalLM"
    assert found.parts["language"].keys() == keys
    # What is not written is what transformers takes.
    short = {key: PUBLISHED[key] for key in ("model_type", "rope_scaling")}
    assert part_of(short, "decoder").keys() == keys


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config: "),
        ({"num_key_value_heads": 64}, "num_key_value_heads: 64"),
        ({"attention_bias": True}, "attention_bias: true"),
    ],
)
def test_what_is_not_computed_is_refused(changed: dict[str, Any], words: str) -> None:
    [found] = part_of({**PUBLISHED, **changed}, "decoder").not_computed()
    assert found.startswith(words)


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    part = part_of(PUBLISHED, "decoder")
    model = model_from_data({"kind": "decoder", **part.keys()})
    assert part.is_ignored("model.layers.61.eh_proj.weight", model)
    assert not part.is_ignored("model.layers.60.mlp.gate.weight", model)
