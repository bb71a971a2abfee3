"""Decoders of DeepSeek-V3 shape: latent attention, experts in groups, a shared expert.

Decides: what their configurations mean, which settings our decoder cannot compute, and the names of
their tensors.
Relies on: `decoder` for the rest of a block.
Leaves: the names of what predicts further tokens to `further_tokens`; weights in FP8, the form of
the published folders, to `quantized`.

Source: `transformers` 5.23, models/deepseek_v3; arXiv:2412.19437.
"""

import re
from typing import Any

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.family import Family, Place, moe_keys
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.further_tokens import NUMBER
from mimo_launch.hugging_face.refusals import Refusal, refusals
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.layers import Mla, Moe
from mimo_launch.spec.spec import DecoderModel, RopeScaling

MODEL_TYPE = "deepseek_v3"
_BLOCK = decoder.DecoderFamily(qkv_bias=False, qk_norm=False, kv_heads=None, head_size=None)
_DEFAULTS: Config = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
}
_Q_RANK = 1536
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)\.weight")
_NAMES = {
    "attention.latent.q_down.weight": "self_attn.q_a_proj.weight",
    "attention.latent.q_norm.weight": "self_attn.q_a_layernorm.weight",
    "attention.latent.kv_down.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attention.latent.kv_norm.weight": "self_attn.kv_a_layernorm.weight",
    "attention.latent.kv_up.weight": "self_attn.kv_b_proj.weight",
    "mlp.router.weight": "mlp.gate.weight",
    **{f"mlp.shared.{x}.weight": f"mlp.shared_experts.{x}_proj.weight" for x in decoder.MLP},
}
_BIAS, _Q_UP = "mlp.router.expert_bias", "attention.latent.q_up.weight"


def _unshared(config: Config) -> Any:
    heads = number({**_DEFAULTS, **config}, "num_attention_heads")
    found = config.get("num_key_value_heads")
    if found is not None and found != heads:
        yield f"num_key_value_heads: {found}"


def _keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    q_rank = config.get("q_lora_rank", _Q_RANK)
    config = _DEFAULTS | {key: each for key, each in config.items() if each is not None}
    turning = number(config, "qk_rope_head_dim")
    size = number(config, "qk_nope_head_dim") + turning
    heads = number(config, "num_attention_heads")
    found = decoder.keys(_BLOCK, {**config, "head_dim": size, "num_key_value_heads": heads})
    scaling, scalar = found["rope_scaling"], None
    if scaling is not None and scaling["mscale_all_dim"]:
        # Scores grow once more with what scales all numbers of a head.
        scalar = size / RopeScaling(**scaling).stretch_by(scaling["mscale_all_dim"]) ** 4
    return {
        **found,
        "mla": {
            "kv_rank": number(config, "kv_lora_rank"),
            "q_rank": q_rank if q_rank is None else number({"q_lora_rank": q_rank}, "q_lora_rank"),
            "rope_head_dim": turning,
            "v_head_dim": number(config, "v_head_dim"),
            "interleaved": bool(config.get("rope_interleave", True)),
            "norm_eps": Mla.model_fields["norm_eps"].default,
        },
        "query_pre_attn_scalar": scalar,
        "moe": experts(config),
    }


def experts(config: Config) -> dict[str, Any]:
    """Return the settings of experts, with their defaults, as `moe`. Raises: ConfigError."""
    width = number(config, "moe_intermediate_size")
    return moe_keys(
        experts=number(config, "n_routed_experts"),
        top_k=number(config, "num_experts_per_tok"),
        width=width,
        score="sigmoid",
        normalize=bool(config.get("norm_topk_prob", True)),
        scale=number(config, "routed_scaling_factor"),
        shared=number(config, "n_shared_experts") * width,
        groups=number(config, "n_group"),
        top_groups=number(config, "topk_group"),
        first_dense=number(config, "first_k_dense_replace"),
        bias_update_rate=0.0,
    )


def place(name: str, model: DecoderModel) -> Place:
    """Return the place of our tensor `name`, which is given without the module. Raises: KeyError.

    The correction bias is not multiplied with activations.
    """
    if not name.startswith("layers."):
        return decoder.place(name, model)
    _, layer, rest = name.split(".", 2)
    before = f"model.layers.{layer}."
    if (expert := _EXPERT.fullmatch(rest)) is not None:
        return Place(f"{before}mlp.experts.{expert[1]}.{expert[2]}_proj.weight")
    if rest == _BIAS:
        return Place(f"{before}mlp.gate.e_score_correction_bias", at_least_fp32=True)
    if rest == _Q_UP:
        is_narrow = model.mla is not None and model.mla.q_rank is not None
        return Place(f"{before}self_attn.{'q_b_proj' if is_narrow else 'q_proj'}.weight")
    return Place(before + _NAMES[rest]) if rest in _NAMES else decoder.place(name, model)


def is_ignored(name: str, model: DecoderModel) -> bool:
    """Return whether a tensor of a file follows from others, or is of a depth that we leave out."""
    parts, behind = name.split("."), model.layers + kind_of(model).depths
    is_beyond = parts[:2] == ["model", "layers"] and int(parts[2]) >= behind
    return is_beyond or decoder.is_ignored(name, model)


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    mla, moe = model.mla or Mla(kv_rank=1), model.moe or Moe(experts=1, top_k=1, width=1)
    config = decoder.config_of(MODEL_TYPE, model)
    return {
        **{key: value for key, value in config.items() if key != "head_dim"},
        "num_key_value_heads": model.heads,
        "kv_lora_rank": mla.kv_rank,
        "q_lora_rank": mla.q_rank,
        "qk_rope_head_dim": mla.rope_head_dim,
        "qk_nope_head_dim": model.head_size - mla.rope_head_dim,
        "v_head_dim": mla.v_head_dim,
        "rope_interleave": mla.interleaved,
        **experts_config(moe),
        NUMBER: kind_of(model).depths,
    }


def experts_config(moe: Moe) -> Config:
    """Return our experts as settings of a configuration."""
    return {
        "n_routed_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.width,
        "norm_topk_prob": moe.normalize,
        "routed_scaling_factor": moe.scale,
        "n_shared_experts": moe.shared // moe.width,
        "n_group": moe.groups,
        "topk_group": moe.top_groups,
        "first_k_dense_replace": moe.first_dense,
    }


TEXT = Family(
    model_type=MODEL_TYPE,
    kind="decoder",
    not_computed=decoder.not_computed(_BLOCK)
    + refusals(Refusal("`num_key_value_heads` other than `num_attention_heads`", _unshared)),
    keys=_keys,
    place=place,
    is_ignored=is_ignored,
    config=_config,
    architecture="DeepseekV3ForCausalLM",
    of_experts=True,
    has_depths=True,
)
