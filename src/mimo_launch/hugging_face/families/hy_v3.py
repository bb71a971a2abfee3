"""Hunyuan 3: a Llama with norms of queries and keys, and experts chosen as in DeepSeek-V3.

Source: `transformers` 5.24, models/hy_v3.
"""

from dataclasses import replace

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import LAYERS
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.settings import Computed
from mimo_launch.hugging_face.tensors import MLP, Place, in_layers

_SHARED, _WIDTH = ("num_shared_experts", 1), "moe_intermediate_size"


def _prepared(config: Config) -> Config:
    """Return a configuration with the number of layers without experts."""
    return decoders.with_dense_first(config, 1)


_MOE = decoders.GROUPED.settings.but(
    {
        "experts": decoders.count(192),
        "normalize": None,
        "groups": None,
        "top_groups": None,
        "scale": "router_scaling_factor",
        "shared": Computed(
            lambda config: number(config, *_SHARED) * number(config, _WIDTH),
            lambda moe: {_SHARED[0]: moe.shared // moe.width},
            f"`{_SHARED[0]}` x `{_WIDTH}`",
        ),
    }
)
HY_V3 = Family(
    model_type="hy_v3",
    kind="decoder",
    architecture="HYV3ForCausalLM",
    published=("tencent/Hy3-preview",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=8, head_size=128),
        qk_norm=True,
        moe=replace(decoders.GROUPED, settings=_MOE),
    ).but(decoders.DENSE_LIST),
    tensors=decoders.GROUPED_TENSORS
    | in_layers(
        LAYERS,
        {
            "mlp.router.weight": "mlp.router.gate.weight",
            "mlp.router.expert_bias": Place("mlp.expert_bias", at_least_fp32=True),
            **{f"mlp.shared.{x}.weight": f"mlp.shared_mlp.{x}_proj.weight" for x in MLP},
        },
    ),
    loaded=decoders.GROUPED_TENSORS,
    refused=decoders.not_computed() + refusals(decoders.DENSE_LATER),
    defaults={
        "vocab_size": 120832, "hidden_size": 4096, "intermediate_size": 13312,
        "num_hidden_layers": 80, "num_attention_heads": 64, "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 8, _WIDTH: 1536, "router_scaling_factor": 2.826,
        "rope_theta": 11158840.0,
    },
    prepared=_prepared,
    rank=2,
    notes="Layers that predict further tokens are left out, as by `transformers`.",
)  # fmt: skip
