"""MiniMax-M2: all heads have one norm and rotate in part; experts are chosen by sigmoids.

Weights in FP8, the form of the published folders, are read by `quantized`.

Source: `transformers` 5.24, models/minimax_m2.
"""

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import LAYERS
from mimo_launch.hugging_face.families.mistral import MIXTRAL
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import only, refusals
from mimo_launch.hugging_face.rotary import FACTOR
from mimo_launch.hugging_face.settings import Fixed, Settings
from mimo_launch.hugging_face.tensors import Place, in_layers

_BLOCK = decoders.sizes(kv_heads=8, head_size=128)
del _BLOCK["mlp"]


def _prepared(config: Config) -> Config:
    """Return a configuration with the part of a head that rotates; published ones have its size."""
    if (turns := config.get("rotary_dim")) is None:
        return config
    return {FACTOR: turns / number(config, "head_dim", 128), **config}


MINIMAX_M2 = Family(
    model_type="minimax_m2",
    kind="decoder",
    architecture="MiniMaxM2ForCausalLM",
    published=("MiniMaxAI/MiniMax-M2",),
    settings=decoders.decoder(
        _BLOCK,
        qk_norm=True,
        wide_qk_norm=True,
        **rotary.rope(rotary.factor_as_written),
        rotary_factor=rotary.rotary_factor(1.0),
        moe=decoders.experts(
            {
                "experts": decoders.count(256), "top_k": "num_experts_per_tok",
                "width": "intermediate_size", "score": Fixed("sigmoid"),
                "bias_update_rate": Fixed(0.0),
            }
        ),
    ),
    tensors=MIXTRAL.tensors
    | in_layers(
        f"{LAYERS}block_sparse_moe.",
        {"router.expert_bias": Place("e_score_correction_bias", at_least_fp32=True)},
        "layers.*.mlp.",
    ),
    refused=decoders.not_computed(but=(FACTOR,))
    + refusals(only("scoring_func", "sigmoid"), only("qk_norm_type", "per_layer")),
    random=("attention_dropout", "router_jitter_noise"),
    training=Settings(decoders.BALANCE),
    aliases=decoders.EXPERTS_ALIAS,
    defaults={
        "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536,
        "num_hidden_layers": 62, "num_attention_heads": 48, "num_experts_per_tok": 8,
        "rope_theta": 5e6,
    },
    prepared=_prepared,
    notes="`mlp` has no effect and is free. The modules that predict further tokens in published "
    "folders are not read.",
)  # fmt: skip
