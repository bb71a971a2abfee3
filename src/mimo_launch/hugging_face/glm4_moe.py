"""Decoders of GLM-4.5 and later: half of each head rotates, experts chosen as in DeepSeek-V3.

Decides: what their configurations mean, and which settings our decoder cannot compute.
Relies on: `glm4v` for heads that rotate in part, `deepseek_experts` for experts and the names of
tensors.
Leaves: the names of tensors that predict further tokens to `further_tokens`.

Source: `transformers` 5.23, models/glm4_moe; arXiv:2508.06471.
"""

from typing import Any

from mimo_launch.hugging_face import decoder, deepseek_experts, rotary
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.further_tokens import NUMBER
from mimo_launch.hugging_face.glm4v import BIAS, FACTOR, rotary_factor, whole_heads
from mimo_launch.hugging_face.refusals import one_of, refusals
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "glm4_moe"
_BLOCK = decoder.DecoderFamily(kv_heads=8)
_DEFAULTS: Config = {
    "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
    "num_attention_heads": 96, "rms_norm_eps": 1e-5, "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128,
    "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_HEAD_NORM = "use_qk_norm"


def _whole_heads(config: Config) -> Config:
    return _DEFAULTS | whole_heads(config)


def _keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    return {
        **decoder.keys(_BLOCK, _whole_heads(config)),
        "qkv_bias": bool(config.get(BIAS, False)),
        "qk_norm": bool(config.get(_HEAD_NORM, False)),
        "rotary_factor": rotary_factor(config, 0.5),
        "moe": deepseek_experts.experts(_DEFAULTS | config),
    }


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    return {
        **decoder.config_of(MODEL_TYPE, model),
        BIAS: model.qkv_bias,
        _HEAD_NORM: model.qk_norm,
        "rope_parameters": {**rotary.rope_of(model), FACTOR: model.rotary_factor},
        **deepseek_experts.experts_config(model),
        NUMBER: kind_of(model).depths,
    }


TEXT = Family(
    model_type=MODEL_TYPE,
    kind="decoder",
    not_computed=refusals(one_of(BIAS, (True, False), False))
    + decoder.not_computed(_BLOCK).without(FACTOR, BIAS).after(_whole_heads),
    keys=_keys,
    place=deepseek_experts.place,
    is_ignored=deepseek_experts.is_ignored,
    config=_config,
    architecture="Glm4MoeForCausalLM",
    of_experts=True,
    has_depths=True,
)
