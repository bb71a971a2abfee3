"""Qwen3.5: Gated DeltaNet in most layers, gated attention in the others, and a tower of Qwen3-VL.

Decides: what the text part of its configuration means, dense or with experts: one of its layers, a
mixer and an MLP or experts, is two layers of a hybrid model.
Relies on: `deltanet_layers` for mixers, `qwen3_5_tensors` for names, `qwen3_vl` for the tower,
`qwen_vl` for the whole.
Leaves: nothing; videos are not supported yet.

Source: `transformers` 5.23, models/qwen3_5 and models/qwen3_5_moe.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mimo_launch.hugging_face import qwen3_5_tensors, qwen3_vl, rotary
from mimo_launch.hugging_face.deltanet_layers import MIXERS, mixer_config, mixer_keys
from mimo_launch.hugging_face.family import Family, moe_keys, value_of
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.moe_decoder import balance
from mimo_launch.hugging_face.qwen_vl import UNSCALED, QwenVl, sections_of
from mimo_launch.hugging_face.refusals import only, refusals
from mimo_launch.spec.hybrid import EXPERTS, MLP
from mimo_launch.spec.spec import HybridModel

# A quarter of each head rotates.
_FACTOR, _SECTIONS, _THETA = 0.25, (11, 11, 10), 10000.0
_SIZES = {
    "hidden": "hidden_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim", "vocab": "vocab_size", "norm_eps": "rms_norm_eps",
}  # fmt: skip
_EXPERTS = {
    "experts": "num_experts", "top_k": "num_experts_per_tok", "width": "moe_intermediate_size",
    "shared": "shared_expert_intermediate_size",
}  # fmt: skip
_COMMON = {"num_attention_heads": 16, "head_dim": 256, "vocab_size": 248320, "rms_norm_eps": 1e-6}
# What every layer has, whatever the configuration says.
_FIXED = {
    "mrope_interleaved": True, "activation": "silu", "qk_norm": True, "norm_offset": True,
    "gated_attention": True, "mamba": None, "moe": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Qwen35Kind:
    """A family of text parts: its types, the letter after each mixer, and defaults."""

    model_type: str
    architecture: str
    behind: str
    defaults: Config


DENSE = Qwen35Kind(
    "qwen3_5_text", "Qwen3_5ForCausalLM", MLP,
    {
        **_COMMON, "hidden_size": 4096, "num_hidden_layers": 32, "num_key_value_heads": 4,
        "intermediate_size": 12288,
    },
)  # fmt: skip
MOE = Qwen35Kind(
    "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", EXPERTS,
    {
        **_COMMON, "hidden_size": 2048, "num_hidden_layers": 40, "num_key_value_heads": 2,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
)  # fmt: skip


def _keys(kind: Qwen35Kind, config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    rope = rotary.rope_settings(config)
    rope = {"partial_rotary_factor": config.get("partial_rotary_factor", _FACTOR), **rope}
    config = kind.defaults | config
    found = {
        **_FIXED,
        **{ours: number(config, theirs) for ours, theirs in _SIZES.items()},
        **mixer_keys(config, kind.behind),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "rope_theta": number({**config, **rope}, "rope_theta", _THETA),
        "rotary_factor": number(rope, "partial_rotary_factor"),
        "mrope": sections_of(rope, _SECTIONS),
    }
    if kind.behind == MLP:
        return {**found, "mlp": number(config, "intermediate_size")}
    sizes = {ours: number(config, theirs) for ours, theirs in _EXPERTS.items()}
    return {**found, "moe": moe_keys(**sizes, shared_gate=True)}


def _config(kind: Qwen35Kind, model: HybridModel) -> Config:
    """Return the configuration of our hybrid model, as transformers 5 writes it."""
    config: Config = {
        "model_type": kind.model_type,
        **mixer_config(model),
        **{theirs: value_of(model, ours) for ours, theirs in _SIZES.items()},
        "tie_word_embeddings": model.tied,
        "mtp_num_hidden_layers": int(model.mtp is not None),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": model.rope_theta or _THETA,
            "partial_rotary_factor": model.rotary_factor,
            "mrope_section": list(model.mrope or ()),
            "mrope_interleaved": True,
        },
    }
    if kind.behind == MLP or model.moe is None:
        return {**config, "intermediate_size": model.mlp_width}
    return {**config, **{theirs: getattr(model.moe, ours) for ours, theirs in _EXPERTS.items()}}


def _family(kind: Qwen35Kind) -> Family[HybridModel]:
    made = Family(
        model_type=kind.model_type,
        kind="hybrid",
        not_computed=refusals(
            only("hidden_act", "silu"),
            only("attention_bias", False),
            MIXERS,
            UNSCALED,
        ).after(lambda config: kind.defaults | config),
        keys=partial(_keys, kind),
        place=qwen3_5_tensors.place,
        is_ignored=qwen3_5_tensors.is_ignored,
        config=partial(_config, kind),
        architecture=kind.architecture,
        other_place=qwen3_5_tensors.stacked,
        layers_in_one=2,
        has_depths=True,
        depth_place=qwen3_5_tensors.depth_place,
    )
    return replace(made, training=balance, of_experts=True) if kind.behind == EXPERTS else made


WHOLES = tuple(
    QwenVl(
        model_type=name,
        architecture=architecture,
        vision=qwen3_vl.vision_family(f"{name}_vision", vision, deepstack=()),
        text=_family(kind),
        nested=True,
        beside=(qwen3_5_tensors.FURTHER_TOKENS,),
    )
    for name, architecture, vision, kind in (
        ("qwen3_5", "Qwen3_5ForConditionalGeneration", "Qwen3_5VisionModel", DENSE),
        ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeVisionModel", MOE),
    )
)
