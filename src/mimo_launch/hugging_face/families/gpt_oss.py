"""GPT-OSS: attention sinks, windows in every second layer, experts with biases.

Weights in 4 bits (MXFP4), the form of the published folders, are read by `quantized`.

Source: `transformers` 5.23, models/gpt_oss; arXiv:2508.10925.
"""

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import LAYERS, WindowKeys, in_turn
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import only, refusals
from mimo_launch.hugging_face.settings import Computed, Settings
from mimo_launch.hugging_face.tensors import MLP, ExpertStack, in_layers

_WINDOWS = WindowKeys(size=128, by_layer=True)
_ROPE: Config = {
    "rope_type": rotary.YARN, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": False, "original_max_position_embeddings": 4096,
}  # fmt: skip


def _prepared(config: Config) -> Config:
    if not rotary.rope_settings(config):
        config = config | {"rope_parameters": _ROPE}
    return in_turn(config, every=2)


def _count(config: Config) -> float:
    # The published folders use the name of other families.
    return number(config, "num_experts" if "num_experts" in config else "num_local_experts")


_BLOCK = decoders.sizes(kv_heads=8, head_size=64)
del _BLOCK["mlp"]
GPT_OSS = Family(
    model_type="gpt_oss",
    kind="decoder",
    architecture="GptOssForCausalLM",
    published=("openai/gpt-oss-20b",),
    settings=decoders.decoder(
        _BLOCK,
        _WINDOWS,
        qkv_bias=True,
        output_bias=True,
        attention_sinks=True,
        activation="clamped_silu",
        moe=decoders.experts(
            {
                "experts": Computed(
                    _count,
                    lambda moe: {"num_local_experts": moe.experts},
                    "`num_experts`, or `num_local_experts`",
                ),
                "top_k": "num_experts_per_tok",
                "width": "intermediate_size",
            },
            bias=True,
        ),
    ).but({}, {"attention_bias": True}),
    tensors=decoders.TENSORS
    | in_layers(
        LAYERS,
        {
            "mlp.router.weight": "mlp.router.weight",
            "mlp.router.bias": "mlp.router.bias",
            "attention.sinks.weight": "self_attn.sinks",
            **{
                f"mlp.experts.*.{part}.{kind}": ExpertStack(
                    "mlp.experts", part, interleaved=True, bias=kind == "bias"
                )
                for part in MLP
                for kind in ("weight", "bias")
            },
        },
    ),
    refused=decoders.not_computed(_WINDOWS, output_bias=True)
    + refusals(only("swiglu_alpha", 1.702), only("swiglu_limit", 7.0)),
    training=Settings(decoders.BALANCE),
    defaults={
        "num_hidden_layers": 36, "num_local_experts": 128, "num_experts_per_tok": 4,
        "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_attention_heads": 64, "rms_norm_eps": 1e-5, "rope_theta": 150000.0,
    },
    prepared=_prepared,
    notes="`score: softmax` with `normalize: true` is its softmax over the chosen experts. Without "
    "`layer_types` every second layer has a window, the first one too; without `rope_parameters` "
    "positions are scaled by YaRN.",
)  # fmt: skip
