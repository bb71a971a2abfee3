"""Decoders of GLM-4: in half of each head neighbours rotate; gate and up are one tensor.

Decides: what their configurations mean, and which settings our decoder cannot compute. Models from
2025 (`glm4`) have norms on both sides.
Relies on: `glm4v` for the names of tensors, which are the same; `decoder` for the rest of a block.
Leaves: GLM-4 with experts to `glm4_moe`.

Source: `transformers` 5.23, models/glm and models/glm4; arXiv:2406.12793.
"""

from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder, rotary
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.glm4v import BIAS, FACTOR, place, rotary_factor, whole_heads
from mimo_launch.hugging_face.refusals import one_of, refusals
from mimo_launch.spec.spec import DecoderModel

_BLOCK = decoder.DecoderFamily(qkv_bias=True, kv_heads=2, head_size=128)
_DEFAULTS: Config = {
    "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
    "num_attention_heads": 32, "rms_norm_eps": 1.5625e-07,
}  # fmt: skip


def _keys(config: Config, *, post_norms: bool) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    return {
        **decoder.keys(_BLOCK, _DEFAULTS | whole_heads(config)),
        "qkv_bias": bool(config.get(BIAS, True)),
        "rotary_factor": rotary_factor(config, 0.5),
        "rotary_interleaved": True,
        "post_norms": post_norms,
    }


def _config(model_type: str, model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    return {
        **decoder.config_of(model_type, model),
        BIAS: model.qkv_bias,
        "rope_parameters": {**rotary.rope_of(model), FACTOR: model.rotary_factor},
    }


FAMILIES = tuple(
    Family(
        model_type=name,
        kind="decoder",
        not_computed=refusals(one_of(BIAS, (True, False), True))
        + decoder.not_computed(_BLOCK).without(FACTOR, BIAS).after(whole_heads),
        keys=partial(_keys, post_norms=name == "glm4"),
        place=place,
        is_ignored=decoder.is_ignored,
        config=partial(_config, name),
        architecture=f"{name.capitalize()}ForCausalLM",
    )
    for name in ("glm", "glm4")
)
