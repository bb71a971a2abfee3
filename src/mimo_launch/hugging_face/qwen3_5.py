"""Qwen3.5: Gated DeltaNet in most layers, gated attention in the others, and a tower of Qwen3-VL.

Decides: what the text part of its configuration means, dense or with experts: one of their layers,
a mixer and an MLP or experts, is two of a hybrid model.
Relies on: `qwen3_5_tensors` for names, `qwen3_vl` for the tower, `qwen_vl` for the whole.
Leaves: videos to nobody yet.

Source: `transformers` 5.23, models/qwen3_5 and models/qwen3_5_moe.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder, qwen3_vl
from mimo_launch.hugging_face.family import Family, moe_keys
from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.moe_decoder import balance
from mimo_launch.hugging_face.qwen3_5_tensors import (
    FURTHER_TOKENS,
    depth_place,
    is_ignored,
    place,
    stacked,
)
from mimo_launch.hugging_face.qwen_vl import QwenVl, plain_rope
from mimo_launch.hugging_face.refusals import Refusal, listed, only, refusals
from mimo_launch.spec.hybrid import ATTENTION, DELTANET, EXPERTS, MLP
from mimo_launch.spec.spec import DeltaNetSizes, HybridModel

_LETTERS = {"linear_attention": DELTANET, "full_attention": ATTENTION}
_NAMES = {letter: name for name, letter in _LETTERS.items()}
# Every fourth layer attends, and a quarter of each head rotates.
_INTERVAL, _FACTOR, _SECTIONS = 4, 0.25, (11, 11, 10)
_THETA, _HEAD = 10000.0, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen35Kind:
    """A family of text parts: its types, the letter behind each mixer, and defaults."""

    model_type: str
    architecture: str
    behind: str
    defaults: Config


DENSE = Qwen35Kind(
    model_type="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    behind=MLP,
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    },
)
MOE = Qwen35Kind(
    model_type="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    behind=EXPERTS,
    defaults={"hidden_size": 2048, "num_hidden_layers": 40, "num_key_value_heads": 2},
)


def _layers(kind: Qwen35Kind, config: Config) -> list[Any]:
    """Return the name of the mixer of each layer. Raises: ConfigError."""
    said = config.get("layer_types")
    if said is None:
        every = max(1, int(number(config, "full_attention_interval", _INTERVAL)))
        depth = int(number(kind.defaults | config, "num_hidden_layers"))
        return [_NAMES[DELTANET if (i + 1) % every else ATTENTION] for i in range(depth)]
    if not isinstance(said, list):
        raise ConfigError(f"`layer_types` is {short(said)}, not a list")
    return said


def _mixers(kind: Qwen35Kind, config: Config) -> Iterator[str]:
    yield from dict.fromkeys(
        f"layer_types: {short(x)}" for x in _layers(kind, config) if x not in _LETTERS
    )


def _ropes(config: Config) -> Iterator[str]:
    rope = decoder.rope_settings(plain_rope(config))
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        yield f"rope_type: {short(rope.get('rope_type', rope.get('type')))}"


def _keys(kind: Qwen35Kind, config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    rope = decoder.rope_settings(config)
    rope = {"partial_rotary_factor": config.get("partial_rotary_factor", _FACTOR), **rope}
    config = kind.defaults | config
    sections = rope.get("mrope_section", _SECTIONS)
    is_list = isinstance(sections, list | tuple)
    if not is_list or not all(isinstance(each, int) for each in sections):
        raise ConfigError(f"`mrope_section` is {short(sections)}, not a list of numbers")
    letters = [_LETTERS.get(each, "?") for each in _layers(kind, config)]
    found = {
        "pattern": "".join(each + kind.behind for each in letters),
        "hidden": number(config, "hidden_size"),
        "heads": number(config, "num_attention_heads", 16),
        "kv_heads": number(config, "num_key_value_heads"),
        "head_dim": number(config, "head_dim", _HEAD),
        "vocab": number(config, "vocab_size", 248320),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "norm_eps": number(config, "rms_norm_eps", 1e-6),
        "rope_theta": number({**config, **rope}, "rope_theta", _THETA),
        "rotary_factor": number(rope, "partial_rotary_factor"),
        "mrope": tuple(sections),
        "mrope_interleaved": True,
        "activation": "silu",
        "qk_norm": True,
        "norm_offset": True,
        "gated_attention": True,
        "mamba": None,
        "deltanet": _sizes(config) if DELTANET in letters else None,
        "moe": None,
    }
    if kind.behind == MLP:
        return {**found, "mlp": number(config, "intermediate_size")}
    moe = moe_keys(
        experts=number(config, "num_experts", 256),
        top_k=number(config, "num_experts_per_tok", 8),
        width=number(config, "moe_intermediate_size", 512),
        shared=number(config, "shared_expert_intermediate_size", 512),
        shared_gate=True,
    )
    return {**found, "moe": moe}


def _sizes(config: Config) -> dict[str, Any]:
    """Return `deltanet`, less what decides no number. Raises: ConfigError."""
    return {
        "heads": number(config, "linear_num_value_heads", 32),
        "key_heads": number(config, "linear_num_key_heads", 16),
        "head_dim": number(config, "linear_value_head_dim", 128),
        "key_dim": number(config, "linear_key_head_dim", 128),
        "conv": number(config, "linear_conv_kernel_dim", 4),
    }


def _config(kind: Qwen35Kind, model: HybridModel) -> Config:
    """Return the configuration of our hybrid model, as transformers 5 writes it."""
    sizes = model.deltanet or DeltaNetSizes.model_validate({"heads": 32, "key_heads": 16})
    rope = {
        "rope_type": "default",
        "rope_theta": model.rope_theta or _THETA,
        "partial_rotary_factor": model.rotary_factor,
        "mrope_section": list(model.mrope or ()),
        "mrope_interleaved": True,
    }
    config: Config = {
        "model_type": kind.model_type,
        "layer_types": [_NAMES.get(each, _NAMES[ATTENTION]) for each in model.pattern[::2]],
        "num_hidden_layers": -(-model.layers // 2),
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_size,
        "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied,
        "mtp_num_hidden_layers": int(model.mtp is not None),
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": rope,
        "linear_num_value_heads": sizes.heads,
        "linear_num_key_heads": sizes.groups,
        "linear_value_head_dim": sizes.head_dim,
        "linear_key_head_dim": sizes.key_dim,
        "linear_conv_kernel_dim": sizes.conv,
    }
    moe = model.moe
    if kind.behind == MLP or moe is None:
        return {**config, "intermediate_size": model.mlp_width}
    return {
        **config,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.width,
        "shared_expert_intermediate_size": moe.shared,
    }


def _family(kind: Qwen35Kind) -> Family[HybridModel]:
    made = Family(
        model_type=kind.model_type,
        kind="hybrid",
        not_computed=refusals(
            only("hidden_act", "silu"),
            only("attention_bias", False),
            Refusal(f"`layer_types` other than {listed(tuple(_LETTERS))}", partial(_mixers, kind)),
            Refusal("`rope_type` other than `default`", _ropes),
        ),
        keys=partial(_keys, kind),
        place=place,
        is_ignored=is_ignored,
        config=partial(_config, kind),
        architecture=kind.architecture,
        other_place=stacked,
        layers_in_one=2,
        has_depths=True,
        depth_place=depth_place,
    )
    return replace(made, training=balance, of_experts=True) if kind.behind == EXPERTS else made


WHOLES = tuple(
    QwenVl(
        model_type=name,
        architecture=architecture,
        vision=qwen3_vl.vision_family(f"{name}_vision", vision, deepstack=()),
        text=_family(kind),
        nested=True,
        beside=(FURTHER_TOKENS,),
    )
    for name, architecture, vision, kind in (
        ("qwen3_5", "Qwen3_5ForConditionalGeneration", "Qwen3_5VisionModel", DENSE),
        ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeVisionModel", MOE),
    )
)
