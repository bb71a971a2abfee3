"""GLM-4: half of each head rotates; gate and up are one tensor; from GLM-4.5 on with experts.

Sources: `transformers` 5.23, models/glm, models/glm4 and models/glm4_moe; arXiv:2406.12793,
arXiv:2508.06471.
"""

from dataclasses import replace

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import LAYERS
from mimo_launch.hugging_face.families.deepseek_v3 import DEPTHS, WRITTEN_DEPTHS
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.refusals import one_of, only, refusals
from mimo_launch.hugging_face.rotary import FACTOR
from mimo_launch.hugging_face.settings import Fixed
from mimo_launch.hugging_face.tensors import QKV, Place, fused, in_layers

BIAS = "attention_bias"
# Heads rotate in part, with or without biases.
REFUSED = decoders.not_computed(but=(FACTOR, BIAS))
TENSORS = decoders.TENSORS | in_layers(
    LAYERS,
    {
        "post_attention_norm": "post_self_attn_layernorm",
        "post_mlp_norm": "post_mlp_layernorm",
        **fused("mlp.gate_up_proj", ("mlp.gate", "mlp.up"), lambda model: [model.mlp_width] * 2),
    },
)


def _dense(model_type: str, *, post_norms: bool, published: str, notes: str) -> Family:
    return Family(
        model_type=model_type,
        kind="decoder",
        architecture=f"{model_type.capitalize()}ForCausalLM",
        published=(published,),
        settings=decoders.decoder(
            decoders.sizes(kv_heads=2, head_size=128),
            qkv_bias=(BIAS, True),
            **rotary.rope(rotary.factor_as_written),
            rotary_factor=rotary.rotary_factor(0.5),
            rotary_interleaved=True,
            post_norms=post_norms,
        ),
        tensors=TENSORS,
        refused=refusals(one_of(BIAS, (True, False), True)) + REFUSED,
        defaults={
            "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696,
            "num_hidden_layers": 40, "num_attention_heads": 32, "rms_norm_eps": 1.5625e-07,
        },
        notes=notes,
    )  # fmt: skip


GLM = _dense(
    "glm",
    post_norms=False,
    published="zai-org/glm-4-9b-chat-hf",
    notes="Of the half of a head that rotates, neighbours rotate together (`rotary_interleaved`).",
)
GLM4 = _dense(
    "glm4",
    post_norms=True,
    published="zai-org/GLM-4-9B-0414",
    notes="A `glm` with norms on both sides of attention and MLP.",
)
_SOLAR = decoders.sizes(kv_heads=8, head_size=128)
del _SOLAR["mlp"]
SOLAR_OPEN = Family(
    model_type="solar_open",
    kind="decoder",
    architecture="SolarOpenForCausalLM",
    published=("upstage/Solar-Open-100B",),
    settings=decoders.decoder(
        _SOLAR,
        qkv_bias=(BIAS, False),
        moe=decoders.GROUPED,
        **rotary.rope(rotary.factor_as_written),
        rotary_factor=rotary.rotary_factor(1.0),
    ),
    tensors=decoders.GROUPED_TENSORS,
    refused=refusals(one_of(BIAS, (True, False), False)) + REFUSED,
    aliases=decoders.ROUTED_ALIAS,
    defaults={
        "vocab_size": 196608, "hidden_size": 4096, "num_hidden_layers": 48,
        "num_attention_heads": 64, "rms_norm_eps": 1e-5, "moe_intermediate_size": 1280,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128,
        "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
        "rope_theta": 1e6,
    },
    rank=2,
    notes="Experts of a GLM-4.5 in all layers; `mlp` has no effect and is free.",
)  # fmt: skip
GLM4_MOE = Family(
    model_type="glm4_moe",
    kind="decoder",
    architecture="Glm4MoeForCausalLM",
    published=("zai-org/GLM-4.5", "zai-org/GLM-4.6"),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=8),
        qkv_bias=(BIAS, False),
        qk_norm=("use_qk_norm", False),
        **rotary.rope(rotary.factor_as_written),
        rotary_factor=rotary.rotary_factor(0.5),
        moe=decoders.GROUPED,
    ).but({}, WRITTEN_DEPTHS),
    tensors=decoders.GROUPED_TENSORS,
    depths=DEPTHS,
    aliases=decoders.ROUTED_ALIAS,
    refused=refusals(one_of(BIAS, (True, False), False)) + REFUSED,
    defaults={
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944,
        "num_hidden_layers": 46, "num_attention_heads": 96, "rms_norm_eps": 1e-5,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    notes="Experts are chosen as in DeepSeek-V3. With `mtp` in `model`, the layers that [predict "
    "further tokens](further-tokens.md#folders) are read and written, too.",
)  # fmt: skip


SARVAM_MOE = replace(
    GLM4_MOE,
    model_type="sarvam_moe",
    published=("sarvamai/sarvam-30b",),
    settings=GLM4_MOE.settings.but(
        {
            "kv_heads": ("num_key_value_heads", 4),
            "head_dim": ("head_dim", 64),
            "qk_norm": ("use_qk_norm", True),
            "qkv_bias": Fixed(False),
            "rotary_factor": rotary.rotary_factor(1.0),
        }
    ),
    refused=refusals(only(BIAS, False)) + REFUSED,
    tensors=decoders.GROUPED_TENSORS
    | in_layers(
        decoders.LAYERS,
        {
            **fused("attention.query_key_value", QKV, decoders.qkv_rows),
            "attention.o": "attention.dense",
            "attention.q_norm": "attention.query_layernorm",
            "attention.k_norm": "attention.key_layernorm",
            "mlp.router.expert_bias": Place("mlp.gate.expert_bias", at_least_fp32=True),
        },
    ),
    loaded=decoders.GROUPED_TENSORS,
    prefixes=(("model.word_embeddings.", "model.embed_tokens."), ("", "")),
    depths=None,
    aliases={**decoders.SARVAM_ALIASES, "use_qkv_bias": BIAS},
    defaults=GLM4_MOE.defaults
    | {
        "vocab_size": 262144, "intermediate_size": 8192, "num_hidden_layers": 19,
        "num_attention_heads": 64, "rms_norm_eps": 1e-6, "moe_intermediate_size": 1024,
        "num_experts_per_tok": 6, "routed_scaling_factor": 2.5, "rope_theta": 8e6,
    },
    rank=3,
    notes="The experts of a GLM-4.5; whole heads rotate.",
)  # fmt: skip
