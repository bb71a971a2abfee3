"""ViP-LLaVA: a LLaVA that projects the states of several layers, after a norm.

Sources: arXiv:2312.00784; `transformers` 5.24, models/vipllava.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families import llama, llava, siglip_clip
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.tensors import layers_at
from mimo_launch.hugging_face.towers import ACTIVATION_REFUSED, theirs_of_projector
from mimo_launch.hugging_face.wholes import LAYERS, features_as_written, tied_by_default

_EPS = ("projector_layernorm_eps", 1e-5)
_LAYER, _ALIAS = "vision_feature_layer", "vision_feature_layers"
_USUAL = (-2, -5, -8, -11, 6)


def _are_others(config: Config) -> bool:
    used = config.get(_LAYER, [*_USUAL])
    return bool(config.get(_ALIAS, used) != used)


VIPLLAVA = replace(
    llava.LLAVA,
    model_type="vipllava",
    architecture="VipLlavaForConditionalGeneration",
    published=("llava-hf/vip-llava-7b-hf",),
    # It leaves out the first token of an image, so only of a CLIP no patch is lost.
    towers=(siglip_clip.CLIP,),
    text=(llama.LLAMA,),
    projector=layers_at(
        {
            **llava.PROJECTOR_LAYERS,
            "projector.norm": "multi_modal_projector.projector_layernorm",
        }
    ),
    feature_layer=_USUAL,
    fixed={
        **llava.FIXED,
        "projector_norm_eps": lambda config: number(config, *_EPS),
        "projector_norm": "layer",
        "projector_norm_offset": False,
        "projector_norm_of": "row",
    },
    refusals=refusals(
        LAYERS,
        ACTIVATION_REFUSED,
        # The name in older folders, which transformers prefers.
        where(_ALIAS, f"other than `{_LAYER}`", _are_others),
    ),
    tied=tied_by_default(False),
    settings={
        _EPS[0]: lambda vision: vision.projector_norm_eps,
        "image_seq_length": llava.SETTINGS["image_seq_length"],
        "projector_hidden_act": theirs_of_projector,
        _LAYER: features_as_written,
    },
    notes="`features` are `vision_feature_layer`, by default -2, -5, -8, -11 and 6 of 24 layers: "
    "`layers: 23` and `features: [22, 19, 16, 13, 5]`.",
)
