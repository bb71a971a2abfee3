"""Experts chosen as in DeepSeek-V3, also for decoders of GLM.

Decides: what their settings mean, and the names of their tensors.
Relies on: `decoder` for the rest of a block.
Leaves: defaults, and all other settings, to the families.
"""

from typing import Any

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.family import Place, moe_keys
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.names import in_layers, is_behind
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import DecoderModel

_SETTINGS = Settings(
    {
        "experts": "n_routed_experts",
        "top_k": "num_experts_per_tok",
        "width": "moe_intermediate_size",
        "normalize": ("norm_topk_prob", True),
        "scale": "routed_scaling_factor",
        "groups": "n_group",
        "top_groups": "topk_group",
        "first_dense": "first_k_dense_replace",
    }
)
_SHARED = "n_shared_experts"
place = decoder.place | in_layers(
    decoder.LAYERS,
    {
        "mlp.router.weight": "mlp.gate.weight",
        # The correction bias is not multiplied by activations.
        "mlp.router.expert_bias": lambda *_: Place(
            "mlp.gate.e_score_correction_bias", at_least_fp32=True
        ),
        **{f"mlp.shared.{x}.weight": f"mlp.shared_experts.{x}_proj.weight" for x in decoder.MLP},
        **{f"mlp.experts.*.{x}.weight": f"mlp.experts.*.{x}_proj.weight" for x in decoder.MLP},
    },
)


def experts(config: Config) -> dict[str, Any]:
    """Return the settings of experts, with their defaults, as `moe`. Raises: ConfigError."""
    found = _SETTINGS.keys(config)
    shared = number(config, _SHARED) * found["width"]
    return moe_keys(**found, score="sigmoid", shared=shared, bias_update_rate=0.0)


def experts_config(model: DecoderModel) -> Config:
    """Return our experts as settings of a configuration."""
    if model.moe is None:
        raise ValueError("a decoder of this family has experts")
    return {**_SETTINGS.config(model.moe), _SHARED: model.moe.shared // model.moe.width}


def is_ignored(name: str, model: DecoderModel) -> bool:
    """Return whether a tensor of a file follows from others, or is of a depth that we leave out."""
    is_beyond = is_behind(name, "model.layers.", model.layers + kind_of(model).depths)
    return is_beyond or decoder.is_ignored(name, model)
