"""Qwen2 and Qwen3: decoders with biases or norms of queries and keys, and with experts.

Sources: `transformers` 5.23, models/qwen2, models/qwen3 and models/qwen3_moe; 5.24,
models/qwen2_moe; arXiv:2407.10671, arXiv:2505.09388.
"""

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import FULL, LAYERS, SLIDING, WindowKeys
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.hugging_face.tensors import MLP, in_layers

WINDOWS, _ASKED = WindowKeys(asked=True, by_layer=True), WindowKeys(asked=True)
QWEN2 = Family(
    model_type="qwen2",
    kind="decoder",
    architecture="Qwen2ForCausalLM",
    published=("Qwen/Qwen2-7B", "Qwen/Qwen2.5-7B"),
    settings=decoders.decoder(decoders.sizes(kv_heads=32), WINDOWS, qkv_bias=True),
    tensors=decoders.TENSORS,
    refused=decoders.not_computed(WINDOWS),
)
QWEN3 = Family(
    model_type="qwen3",
    kind="decoder",
    architecture="Qwen3ForCausalLM",
    published=("Qwen/Qwen3-8B",),
    settings=decoders.decoder(decoders.sizes(kv_heads=32, head_size=128), WINDOWS, qk_norm=True),
    tensors=decoders.TENSORS,
    refused=decoders.not_computed(WINDOWS),
)
ROUTER = {"mlp.router.weight": "mlp.gate.weight"}
EXPERTS = ROUTER | {f"mlp.experts.*.{x}.weight": f"mlp.experts.*.{x}_proj.weight" for x in MLP}
_SHARED = "mlp.shared_expert"


def _in_turn(config: Config) -> Config:
    """Return a configuration with kinds of layers; the first ones have windows by turns."""
    before = number(config, "max_window_layers", 28) if config.get("use_sliding_window") else 0
    layers = range(int(number(config, "num_hidden_layers")))
    types = [SLIDING if i % 2 == 0 and i < before else FULL for i in layers]
    return {**config, "layer_types": config.get("layer_types") or types}


QWEN2_MOE = Family(
    model_type="qwen2_moe",
    kind="decoder",
    architecture="Qwen2MoeForCausalLM",
    published=("Qwen/Qwen1.5-MoE-A2.7B", "Qwen/Qwen2-57B-A14B"),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=16),
        WINDOWS,
        qkv_bias=("qkv_bias", True),
        moe=decoders.experts(
            {
                "experts": "num_experts", "top_k": "num_experts_per_tok",
                "width": "moe_intermediate_size", "normalize": ("norm_topk_prob", False),
                "shared": "shared_expert_intermediate_size",
                "every": ("decoder_sparse_step", 1), **decoders.DENSE_LAYERS,
            },
            shared_gate=True,
        ),
    ),
    tensors=decoders.TENSORS
    | in_layers(
        LAYERS,
        EXPERTS
        | {f"mlp.shared.{x}.weight": f"{_SHARED}.{x}_proj.weight" for x in MLP}
        | {"mlp.shared_gate.weight": f"{_SHARED}_gate.weight"},
    ),
    refused=decoders.not_computed(WINDOWS) + refusals(decoders.FIRST_DENSE),
    training=Settings(decoders.BALANCE),
    defaults={
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_experts": 60,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    prepared=_in_turn,
    notes="Every token goes through a shared expert with a gate, too.",
)  # fmt: skip
QWEN3_MOE = Family(
    model_type="qwen3_moe",
    kind="decoder",
    architecture="Qwen3MoeForCausalLM",
    published=("Qwen/Qwen3-30B-A3B",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=4),
        _ASKED,
        qk_norm=True,
        moe=decoders.experts({
            "experts": decoders.count(), "top_k": "num_experts_per_tok",
            "width": "moe_intermediate_size", "normalize": ("norm_topk_prob", False),
            "every": ("decoder_sparse_step", 1), **decoders.DENSE_LAYERS,
        }),
    ),
    tensors=decoders.TENSORS
    | in_layers(LAYERS, EXPERTS),
    refused=decoders.not_computed(_ASKED) + refusals(decoders.FIRST_DENSE),
    training=Settings(decoders.BALANCE),
    aliases=decoders.EXPERTS_ALIAS,
    defaults={
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "intermediate_size": 6144,
    },
    notes="`transformers` 5 stacks experts in memory but writes them one by one, as in published "
    "folders.",
)  # fmt: skip
