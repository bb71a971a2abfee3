"""OLMo 2, OLMo 3, OLMoE and FlexOlmo: all heads have one norm; norms follow layers, but in OLMoE.

Source: `transformers` 5.24, models/olmo2, models/olmo3, models/olmoe and models/flex_olmo;
arXiv:2501.00656, arXiv:2409.02060.
"""

from typing import Any

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import LAYERS, WindowKeys, in_turn
from mimo_launch.hugging_face.families import gemma, qwen
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.rotary import LINEAR, YARN
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.hugging_face.tensors import Tensors, in_layers

_AFTER: dict[str, Any] = {"pre_norms": False, "post_norms": True}
_WIDE: dict[str, Any] = {"qk_norm": True, "wide_qk_norm": True}
_COMMON: Config = {
    "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
}  # fmt: skip
# Names of norms after layers; the norms before them, which others have, are in no file.
TENSORS = Tensors(
    {
        ours: place
        for ours, place in decoders.TENSORS.table.items()
        if ours not in ("layers.*.attention_norm", "layers.*.mlp_norm")
    }
    | in_layers(
        LAYERS,
        {
            "post_attention_norm": "post_attention_layernorm",
            "post_mlp_norm": "post_feedforward_layernorm",
        },
    ),
    decoders.TENSORS.dropped,
)
OLMO2 = Family(
    model_type="olmo2",
    kind="decoder",
    architecture="Olmo2ForCausalLM",
    published=("allenai/OLMo-2-1124-7B",),
    settings=decoders.decoder(decoders.sizes(), **_AFTER, **_WIDE),
    tensors=TENSORS,
    refused=decoders.not_computed(),
    defaults=_COMMON,
    notes="Norms follow attention and MLP (`pre_norms: false`); queries of all heads have one "
    "norm, and so have keys (`wide_qk_norm`).",
)
_THETA, _WINDOWS = 5e5, WindowKeys(by_layer=True)


def _with_windows(config: Config) -> Config:
    """Return a configuration with kinds of layers; scaling changes those without windows alone."""
    return in_turn({"rope_theta": _THETA, **config, "rope_local_base_freq": _THETA}, every=4)


OLMO3 = Family(
    model_type="olmo3",
    kind="decoder",
    architecture="Olmo3ForCausalLM",
    published=("allenai/Olmo-3-1025-7B", "allenai/Olmo-3-32B-Think"),
    settings=decoders.decoder(decoders.sizes(), **gemma.ROPES, **_AFTER, **_WIDE),
    tensors=TENSORS,
    refused=decoders.not_computed(_WINDOWS).without("rope_type")
    + refusals(gemma.rope_refusal("default", LINEAR, YARN)),
    defaults=_COMMON,
    prepared=_with_windows,
    rank=1,
    notes="An OLMo 2 in which every fourth layer has no window, and, if at all, scaled rotary "
    "positions. Their base is 5e5 if left out; a `rope_theta` beside `rope_parameters` is that of "
    "layers without windows alone, and `truncate` has no effect, as in `transformers`.",
)
_MOE = decoders.experts(
    {
        "experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "width": "intermediate_size",
        "normalize": ("norm_topk_prob", False),
    }
)
_BLOCK = decoders.sizes()
del _BLOCK["mlp"]
OLMOE = Family(
    model_type="olmoe",
    kind="decoder",
    architecture="OlmoeForCausalLM",
    published=("allenai/OLMoE-1B-7B-0924",),
    settings=decoders.decoder(_BLOCK, **_WIDE, clip_qkv=("clip_qkv", None), moe=_MOE),
    tensors=qwen.QWEN3_MOE.tensors,
    refused=decoders.not_computed(),
    training=Settings({"aux_loss": ("router_aux_loss_coef", 0.01)}),
    aliases={"num_local_experts": "num_experts"},
    defaults=_COMMON
    | {
        "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
    },
    notes="`mlp` has no effect and is free.",
)  # fmt: skip
FLEX_OLMO = Family(
    model_type="flex_olmo",
    kind="decoder",
    architecture="FlexOlmoForCausalLM",
    published=("allenai/FlexOlmo-7x7B-1T",),
    settings=decoders.decoder(_BLOCK, **_AFTER, **_WIDE, moe=_MOE),
    tensors=TENSORS | in_layers(LAYERS, qwen.EXPERTS),
    refused=decoders.not_computed(),
    training=OLMOE.training,
    aliases=OLMOE.aliases,
    defaults=_COMMON
    | {
        "vocab_size": 100352, "rms_norm_eps": 1e-6, "rope_theta": 5e5, "num_experts": 7,
        "num_experts_per_tok": 5,
    },
    notes="An OLMo 2 with experts; `mlp` has no effect and is free.",
)  # fmt: skip
