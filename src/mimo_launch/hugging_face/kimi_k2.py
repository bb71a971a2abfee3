"""Kimi-K2: a DeepSeek-V3 under another name, computed by Python code in its folders.

Decides: the name, the form of its rotary settings, and the additional settings of that code.
Relies on: `deepseek_v3` for everything else.
Leaves: the code in the folders, which is neither read nor copied.

Source: the published folders of Kimi-K2; arXiv:2507.20534.
"""

from dataclasses import replace

from mimo_launch.hugging_face import deepseek_v3
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.refusals import only, refusals
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "kimi_k2"


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as the code in a folder of Kimi-K2 reads it."""
    config = deepseek_v3.TEXT.config(model)
    # That code knows the settings of transformers 4, which 5 reads as well.
    scaling = config.pop("rope_parameters")
    theta, kind = scaling.pop("rope_theta"), scaling.pop("rope_type")
    return {
        **config,
        "model_type": MODEL_TYPE,
        "rope_theta": theta,
        "rope_scaling": None if kind == "default" else {"type": kind, **scaling},
    }


TEXT = replace(
    deepseek_v3.TEXT,
    model_type=MODEL_TYPE,
    config=_config,
    not_computed=deepseek_v3.TEXT.not_computed
    + refusals(
        only("scoring_func", "sigmoid"),
        only("topk_method", "noaux_tc"),
        only("moe_layer_freq", 1),
        # That code rotates numbers in pairs, whatever the setting.
        only("rope_interleave", True),
    ),
)
