"""Decoders of DeepSeek-V3 shape: latent attention, experts in groups, a shared expert.

Decides: what their configurations mean, which settings our decoder cannot compute, and the names of
their tensors.
Relies on: `decoder` for the rest of a block, `deepseek_experts` for experts.
Leaves: the names of tensors that predict further tokens to `further_tokens`; weights in FP8, the
form of the published folders, to `quantized`.

Source: `transformers` 5.23, models/deepseek_v3; arXiv:2412.19437.
"""

from typing import Any

from mimo_launch.hugging_face import decoder, deepseek_experts
from mimo_launch.hugging_face.family import Family, Place
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.further_tokens import NUMBER
from mimo_launch.hugging_face.names import in_layers
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.layers import Mla
from mimo_launch.spec.spec import DecoderModel, RopeScaling

MODEL_TYPE = "deepseek_v3"
_BLOCK = decoder.DecoderFamily()
_DEFAULTS: Config = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
    "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
}  # fmt: skip
_MLA = Settings(
    {
        "kv_rank": "kv_lora_rank",
        # Null means no narrow width.
        "q_rank": ("q_lora_rank", 1536),
        "rope_head_dim": "qk_rope_head_dim",
        "v_head_dim": "v_head_dim",
        "interleaved": ("rope_interleave", True),
    }
)


def _query(model: DecoderModel, _layer: int) -> Place:
    is_narrow = model.mla is not None and model.mla.q_rank is not None
    return Place(f"self_attn.{'q_b_proj' if is_narrow else 'q_proj'}.weight")


_NAMES = deepseek_experts.place | in_layers(
    decoder.LAYERS,
    {
        "attention.latent.q_down.weight": "self_attn.q_a_proj.weight",
        "attention.latent.q_norm.weight": "self_attn.q_a_layernorm.weight",
        "attention.latent.q_up.weight": _query,
        "attention.latent.kv_down.weight": "self_attn.kv_a_proj_with_mqa.weight",
        "attention.latent.kv_norm.weight": "self_attn.kv_a_layernorm.weight",
        "attention.latent.kv_up.weight": "self_attn.kv_b_proj.weight",
    },
)


def _keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    is_wide = config.get("q_lora_rank", 0) is None
    config = _DEFAULTS | {key: each for key, each in config.items() if each is not None}
    mla = _MLA.keys(config) | ({"q_rank": None} if is_wide else {})
    size = number(config, "qk_nope_head_dim") + mla["rope_head_dim"]
    heads = number(config, "num_attention_heads")
    found = decoder.keys(_BLOCK, {**config, "head_dim": size, "num_key_value_heads": heads})
    scaling, scalar = found["rope_scaling"], None
    if scaling is not None and scaling["mscale_all_dim"]:
        # Scores also grow with the factor that scales all numbers of a head.
        scalar = size / RopeScaling(**scaling).stretch_by(scaling["mscale_all_dim"]) ** 4
    return {
        **found,
        "mla": {**mla, "norm_eps": Mla.model_fields["norm_eps"].default},
        "query_pre_attn_scalar": scalar,
        "moe": deepseek_experts.experts(config),
    }


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    config = decoder.config_of(MODEL_TYPE, model)
    mla = model.mla or Mla(kv_rank=1)
    return {
        **{key: value for key, value in config.items() if key != "head_dim"},
        "num_key_value_heads": model.heads,
        **_MLA.config(mla),
        "qk_nope_head_dim": model.head_size - mla.rope_head_dim,
        **deepseek_experts.experts_config(model),
        NUMBER: kind_of(model).depths,
    }


TEXT = Family(
    model_type=MODEL_TYPE,
    kind="decoder",
    not_computed=decoder.not_computed(_BLOCK)
    + refusals(
        where(
            "num_key_value_heads",
            "other than `num_attention_heads`",
            lambda config: (
                config.get("num_key_value_heads")
                not in (None, number(_DEFAULTS | config, "num_attention_heads"))
            ),
        )
    ),
    keys=_keys,
    place=_NAMES,
    is_ignored=deepseek_experts.is_ignored,
    config=_config,
    architecture="DeepseekV3ForCausalLM",
    of_experts=True,
    has_depths=True,
)
