"""GLM-4.5V: the tower of GLM-4.1V, and a decoder with experts chosen as in DeepSeek-V3.

Decides: what the text part of its configuration means.
Relies on: `deepseek_experts` for experts and the names of tensors, `glm4v` for heads that rotate in
part, `glm4v_vision` for the tower, `qwen_vl` for the whole.
Leaves: layers that predict further tokens, which transformers leaves out as well.

Source: `transformers` 5.23, models/glm4v_moe; arXiv:2508.06471.
"""

from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face import decoder, deepseek_experts
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.glm4v import BIAS, FACTOR, TEXT_KIND, rotary_factor, whole_heads
from mimo_launch.hugging_face.glm4v_vision import vision_family
from mimo_launch.hugging_face.qwen_vl import QwenVl, text_config, text_keys
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "glm4v_moe"
_TEXT = replace(
    TEXT_KIND,
    block=replace(TEXT_KIND.block, kv_heads=8),
    defaults={
        "vocab_size": 151424, "hidden_size": 4096, "intermediate_size": 10944,
        "num_hidden_layers": 46, "num_attention_heads": 96, "rms_norm_eps": 1e-5,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1,
    },
)  # fmt: skip


def _prepared(config: Config) -> Config:
    return _TEXT.defaults | whole_heads(config)


def _keys(config: Config) -> dict[str, Any]:
    return {
        **text_keys(_TEXT, _prepared(config)),
        # It does not apply to the projection after attention.
        "qkv_bias": bool(config.get("attention_bias", True)),
        "rotary_factor": rotary_factor(config, 0.5),
        "moe": deepseek_experts.experts(_prepared(config)),
    }


def _config(model: DecoderModel) -> Config:
    config = text_config(TEXT.model_type, _TEXT, model)
    config["rope_parameters"][FACTOR] = model.rotary_factor
    return {
        **config,
        "attention_bias": model.qkv_bias,
        **deepseek_experts.experts_config(model),
    }


TEXT = Family(
    model_type=f"{MODEL_TYPE}_text",
    kind="decoder",
    not_computed=decoder.not_computed(_TEXT.block).without(FACTOR, BIAS).after(_prepared),
    keys=_keys,
    place=deepseek_experts.place,
    is_ignored=deepseek_experts.is_ignored,
    config=_config,
    architecture="Glm4vMoeTextModel",
    of_experts=True,
)
WHOLE = QwenVl(
    model_type=MODEL_TYPE,
    architecture="Glm4vMoeForConditionalGeneration",
    vision=vision_family(f"{MODEL_TYPE}_vision", "Glm4vMoeVisionModel"),
    text=TEXT,
    nested=True,
)
