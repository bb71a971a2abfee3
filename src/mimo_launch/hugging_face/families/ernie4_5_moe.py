"""ERNIE 4.5 with experts, chosen by their softmax and a bias that only the choice uses.

Source: `transformers` 5.24, models/ernie4_5_moe.
"""

from typing import Any

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.families.llama import ERNIE4_5
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import only, refusals, where
from mimo_launch.hugging_face.settings import Computed, Fixed, Settings
from mimo_launch.hugging_face.tensors import Place, in_layers

_SHARED, _WIDTH, _END = ("moe_num_shared_experts", 2), ("moe_intermediate_size", 1536), -1
_LAST = "moe_layer_end_index"


def _ends_early(config: Config) -> bool:
    return config.get(_LAST, _END) not in (_END, number(config, "num_hidden_layers") - 1)


def _bias(model: Any, *_numbers: int) -> Place:
    """`mlp.moe_statics.e_score_correction_bias` in another shape."""
    name = "mlp.moe_statics.e_score_correction_bias"
    return Place(name, shape=(1, model.moe.experts))


ERNIE4_5_MOE = Family(
    model_type="ernie4_5_moe",
    kind="decoder",
    architecture="Ernie4_5_MoeForCausalLM",
    published=("baidu/ERNIE-4.5-21B-A3B-PT",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=4),
        rotary_interleaved=True,
        moe=decoders.experts(
            {
                "experts": ("moe_num_experts", 64),
                "top_k": ("moe_k", 6),
                "width": _WIDTH,
                "shared": Computed(
                    lambda config: number(config, *_SHARED) * number(config, *_WIDTH),
                    lambda moe: {_SHARED[0]: moe.shared // moe.width},
                    f"`{_SHARED[0]}` x `{_WIDTH[0]}`",
                ),
                "bias_update_rate": Fixed(0.0),
                "first_dense": ("moe_layer_start_index", 1),
            }
        ),
    ),
    tensors=decoders.GROUPED_TENSORS
    | in_layers(decoders.LAYERS, {"mlp.router.expert_bias": _bias}),
    refused=refusals(
        only("use_bias", False),
        only("moe_layer_interval", 1),
        only("moe_norm_min", 1e-12),
        where(_LAST, "other than the last layer", _ends_early, _END),
    )
    + decoders.not_computed(),
    random=(),
    training=Settings(decoders.BALANCE),
    aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    defaults=ERNIE4_5.defaults
    | {
        "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
        "num_attention_heads": 20,
    },
    rank=2,
    notes="An ERNIE 4.5 with experts.",
)  # fmt: skip
