"""ViP-LLaVA: a LLaVA that projects the states of several layers, after a norm.

Sources: arXiv:2312.00784; `transformers` 5.24, models/vipllava.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families import llama, llava, siglip_clip
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.tensors import layers_at
from mimo_launch.hugging_face.towers import ACTIVATION_REFUSED, theirs_of_projector
from mimo_launch.hugging_face.wholes import LAYERS, features_as_written, tied_by_default

_EPS = ("projector_layernorm_eps", 1e-5)
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
    feature_layer=(-2, -5, -8, -11, 6),
    fixed={
        **llava.FIXED,
        "projector_norm_eps": lambda config: number(config, *_EPS),
        "projector_norm": "layer",
        "projector_norm_offset": False,
        "projector_norm_of": "row",
    },
    refusals=refusals(LAYERS, ACTIVATION_REFUSED),
    tied=tied_by_default(False),
    settings={
        _EPS[0]: lambda vision: vision.projector_norm_eps,
        "image_seq_length": llava.SETTINGS["image_seq_length"],
        "projector_hidden_act": theirs_of_projector,
        "vision_feature_layer": features_as_written,
    },
    notes="`features` are `vision_feature_layer`, by default -2, -5, -8, -11 and 6 of 24 layers: "
    "`layers: 23` and `features: [22, 19, 16, 13, 5]`.",
)
