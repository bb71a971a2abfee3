"""Mellum 2: a Qwen3-MoE in which layers with windows have rotary positions of another base.

Source: `transformers` 5.24, models/mellum.
"""

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import FULL, SLIDING, WindowKeys
from mimo_launch.hugging_face.families import gemma
from mimo_launch.hugging_face.families.qwen import QWEN3_MOE
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.rotary import LINEAR, YARN
from mimo_launch.hugging_face.settings import Settings

_WINDOWS = WindowKeys(by_layer=True)
_ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 5e5},
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}


def _prepared(config: Config) -> Config:
    """Return a configuration with kinds of layers; by default none has windows."""
    layers = int(number(config, "num_hidden_layers"))
    said = {
        "layer_types": config.get("layer_types") or [FULL] * layers,
        "rope_parameters": config.get("rope_parameters") or _ROPES,
    }
    return decoders.with_dense_first({**config, **said}, 0)


MELLUM = Family(
    model_type="mellum",
    kind="decoder",
    architecture="MellumForCausalLM",
    published=("JetBrains/Mellum2-12B-A2.5B-Base",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=4, head_size=128),
        qk_norm=True,
        **gemma.ROPES,
        moe=decoders.experts(
            {
                "experts": decoders.count(64), "top_k": "num_experts_per_tok",
                "width": "moe_intermediate_size", "normalize": ("norm_topk_prob", True),
                "first_dense": "first_k_dense_replace",
            }
        ),
    ).but(decoders.DENSE_LIST),
    tensors=QWEN3_MOE.tensors,
    refused=decoders.not_computed(_WINDOWS).without("rope_type")
    + refusals(decoders.DENSE_LATER, gemma.rope_refusal("default", LINEAR, YARN)),
    training=Settings(decoders.BALANCE),
    aliases=decoders.EXPERTS_ALIAS,
    defaults={
        "vocab_size": 98304, "hidden_size": 2304, "intermediate_size": 7168,
        "num_hidden_layers": 28, "num_attention_heads": 32, "sliding_window": 1024,
        "num_experts_per_tok": 8, "moe_intermediate_size": 896,
    },
    prepared=_prepared,
    notes="Layers that predict further tokens are not read. `truncate` in `rope_parameters` of a "
    "kind of layer has no effect, as in `transformers`.",
)  # fmt: skip
