"""LFM2-VL: a SigLIP 2 on images of any size, a projector of two layers, and an LFM2.

Source: `transformers` 5.24, models/lfm2_vl.
"""

from mimo_launch.hugging_face.families.lfm2 import LFM2, tied
from mimo_launch.hugging_face.families.siglip_clip import SIGLIP2
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.refusals import one_of, only, refusals
from mimo_launch.hugging_face.tensors import layers_at
from mimo_launch.hugging_face.towers import ACTIVATIONS, PLAIN_PROJECTOR
from mimo_launch.hugging_face.wholes import TowerAndDecoder

_ACTIVATION = "projector_hidden_act"
_INSIDE, _NORMS, _SHUFFLE = "projector_hidden_size", "projector_use_layernorm", "downsample_factor"
LFM2_VL = TowerAndDecoder(
    model_type="lfm2_vl",
    architecture="Lfm2VlForConditionalGeneration",
    published=("LiquidAI/LFM2-VL-450M", "LiquidAI/LFM2-VL-1.6B"),
    towers=(SIGLIP2,),
    text=(LFM2,),
    tower_names=(
        ("model.vision_tower.", ""),
        ("model.vision_tower.vision_model.", ""),
        ("model.multi_modal_projector.", "model.multi_modal_projector."),
    ),
    text_names=(("model.language_model.", "model."), ("lm_head.", "lm_head.")),
    projector=layers_at({
        f"projector.{ours}": f"model.multi_modal_projector.{its}"
        for ours, its in (("norm", "layer_norm"), ("up", "linear_1"), ("down", "linear_2"))
    }),
    fixed={
        **PLAIN_PROJECTOR, "projector": "mlp", "projector_norm": "layer",
        "shuffle": lambda config: int(number(config, _SHUFFLE, 2)),
        "projector_mlp": lambda config: int(number(config, _INSIDE, 2560)),
        "projector_activation": lambda config: ACTIVATIONS.get(
            str(config.get(_ACTIVATION, "gelu")), "gelu"
        ),
        "projector_norm_eps": lambda config: 1e-5 if config.get(_NORMS, True) else None,
    },
    refusals=refusals(one_of(_ACTIVATION, ACTIVATIONS, "gelu"), only("projector_bias", True)),
    # What language says of it is not used.
    tied=lambda config, _text: tied(config),
    text_ignores=("tie_embedding",),
    token="image_token_id",
    settings={
        _SHUFFLE: lambda vision: vision.shuffle,
        _INSIDE: lambda vision: vision.projector_mlp_width,
        _NORMS: lambda vision: vision.projector_norm_eps is not None,
    },
    notes="Images keep their sides. The tiles of its processor are not read.",
)  # fmt: skip
