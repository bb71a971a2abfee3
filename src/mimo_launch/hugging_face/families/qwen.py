"""Qwen2, Qwen3 and Qwen3-MoE: decoders with biases or norms of queries and keys, and with experts.

Source: `transformers` 5.23, models/qwen2, models/qwen3 and models/qwen3_moe; arXiv:2505.09388.
"""

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import LAYERS, WindowKeys
from mimo_launch.hugging_face.family import Family
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
    | in_layers(
        LAYERS,
        ROUTER | {f"mlp.experts.*.{x}.weight": f"mlp.experts.*.{x}_proj.weight" for x in MLP},
    ),
    refused=decoders.not_computed(_ASKED) + refusals(decoders.FIRST_DENSE),
    training=Settings(decoders.BALANCE),
    defaults={
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "intermediate_size": 6144,
    },
    notes="`transformers` 5 stacks experts in memory but writes them one by one, as in published "
    "folders.",
)  # fmt: skip
