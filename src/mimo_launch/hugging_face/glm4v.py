"""GLM-4.1V: a decoder with norms on both sides, heads that rotate in part, on three axes.

Decides: what the text part of its configuration means, and the names of its tensors.
Relies on: `decoder` for the rest of a block, `glm4v_vision` for the tower, `qwen_vl` for the whole.
Leaves: the decoder with experts of GLM-4.5V to `glm4v_moe`.

Source: `transformers` 5.23, models/glm4v; arXiv:2507.01006.
"""

from typing import Any

from mimo_launch.hugging_face import decoder, rotary
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.glm4v_vision import vision_family
from mimo_launch.hugging_face.names import fused, in_layers
from mimo_launch.hugging_face.qwen_vl import QwenVl, TextKind, text_config, text_keys
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "glm4v"
_DEFAULTS: Config = {
    "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
    "num_attention_heads": 32, "rms_norm_eps": 1e-5,
}  # fmt: skip
TEXT_KIND = TextKind(
    decoder.DecoderFamily(qkv_bias=True, kv_heads=2),
    _DEFAULTS,
    (8, 12, 12),
    interleaved=False,
)
FACTOR, BIAS = "partial_rotary_factor", "attention_bias"
place = decoder.place | in_layers(
    decoder.LAYERS,
    {
        "post_attention_norm": "post_self_attn_layernorm",
        "post_mlp_norm": "post_mlp_layernorm",
        **fused("mlp.gate_up_proj", ("mlp.gate", "mlp.up"), lambda model: [model.mlp_width] * 2),
    },
)


def whole_heads(config: Config) -> Config:
    """Return a configuration as if whole heads rotated and there were no biases."""
    rope = {key: each for key, each in rotary.rope_settings(config).items() if key != FACTOR}
    kept = {key: each for key, each in config.items() if key not in (FACTOR, BIAS)}
    return kept | {"rope_parameters": rope, "rope_scaling": None}


def rotary_factor(config: Config, default: float) -> float:
    """Return the part of a head that rotates; versions before 5 wrote it beside the base."""
    return number({FACTOR: config.get(FACTOR, default), **rotary.rope_settings(config)}, FACTOR)


def _prepared(config: Config) -> Config:
    # Heads fill the width, and queries, keys and values have biases, whatever the configuration.
    return {key: x for key, x in (_DEFAULTS | whole_heads(config)).items() if key != "head_dim"}


def _keys(config: Config) -> dict[str, Any]:
    return {
        **text_keys(TEXT_KIND, _prepared(config)),
        "rotary_factor": rotary_factor(config, 1.0),
        "rotary_interleaved": True,
        "post_norms": True,
    }


def _config(model: DecoderModel) -> Config:
    config = text_config(TEXT.model_type, TEXT_KIND, model)
    del config["head_dim"]
    config["rope_parameters"][FACTOR] = model.rotary_factor
    return config


TEXT = Family(
    model_type=f"{MODEL_TYPE}_text",
    kind="decoder",
    not_computed=decoder.not_computed(TEXT_KIND.block).without(FACTOR, BIAS).after(_prepared),
    keys=_keys,
    place=place,
    is_ignored=decoder.is_ignored,
    config=_config,
    architecture="Glm4vTextModel",
)
WHOLE = QwenVl(
    model_type=MODEL_TYPE,
    architecture="Glm4vForConditionalGeneration",
    vision=vision_family(f"{MODEL_TYPE}_vision", "Glm4vVisionModel"),
    text=TEXT,
    nested=True,
)
