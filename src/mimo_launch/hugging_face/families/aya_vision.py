"""Aya Vision and Command A Vision: a SigLIP, squares of patches, a gated projector, a Command R.

Source: `transformers` 5.24, models/aya_vision and models/cohere2_vision; arXiv:2505.08751.
"""

from typing import Any

from mimo_launch.hugging_face.families import cohere, llava, siglip_clip
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.refusals import NOTHING, only, refusals
from mimo_launch.hugging_face.tensors import Rows, layers_at
from mimo_launch.hugging_face.towers import PLAIN_PROJECTOR
from mimo_launch.hugging_face.wholes import ONE_LAYER, TowerAndDecoder, tied_by_default
from mimo_launch.spec.spec import VitModel

_PROJECTOR, _FACTOR = "multi_modal_projector.", "downsample_factor"
_WIDTH, _EPS = "alignment_intermediate_size", "adapter_layer_norm_eps"
_STRATEGY, _LAYER = "vision_feature_select_strategy", "vision_feature_layer"


def _inner(vision: VitModel) -> list[int]:
    return [vision.projector_mlp or 0] * 2


# The first map makes what is gated, then its gate.
_MAPS: dict[str, Any] = {
    **{
        f"projector.{ours}.{kind}": Rows(f"{_PROJECTOR}linear_1.{kind}", index, _inner)
        for index, ours in enumerate(("up", "gate"))
        for kind in ("weight", "bias")
    },
    **layers_at({"projector.down": f"{_PROJECTOR}linear_2"}),
}


def _fixed(width: Any, **more: Any) -> dict[str, Any]:
    """Return what the whole decides of a tower; `width` reads the width of the first map."""
    return {
        **PLAIN_PROJECTOR, "shuffle": lambda config: number(config, _FACTOR, 2),
        "projector": "swiglu", "projector_activation": "gelu",
        "projector_mlp": lambda config: width(config) // 2, **more,
    }  # fmt: skip


def _aligned(config: Config) -> float:
    """Return the width of the first map; a setting, or the width of language."""
    text = section(config, "text_config")
    usual = cohere.SIZES["hidden_size"]
    return number(config, _WIDTH, number(text, "hidden_size", usual))


COHERE2_VISION = TowerAndDecoder(
    model_type="cohere2_vision",
    architecture="Cohere2VisionForConditionalGeneration",
    published=("CohereLabs/command-a-vision-07-2025",),
    towers=(siglip_clip.SIGLIP,),
    text=(cohere.COHERE2,),
    tower_names=(
        ("model.vision_tower.", ""),
        ("model.vision_tower.vision_model.", ""),
        (f"model.{_PROJECTOR}", _PROJECTOR),
    ),
    text_names=llava.TEXT_NAMES[2:],
    projector=_MAPS,
    fixed=_fixed(lambda config: number(config, _WIDTH, 36864), final_norm=True),
    refusals=NOTHING,
    # Its class leaves out the factor on logits.
    text_fixed={"logit_scale": None},
    tied=tied_by_default(True),
    token="image_token_id",
    settings={
        _FACTOR: lambda vision: vision.shuffle,
        _WIDTH: lambda vision: sum(_inner(vision)),
    },
    notes="`projector: swiglu`: a gate after squares of patches.",
)
AYA_VISION = TowerAndDecoder(
    model_type="aya_vision",
    architecture="AyaVisionForConditionalGeneration",
    published=("CohereLabs/aya-vision-8b", "CohereLabs/aya-vision-32b"),
    towers=(siglip_clip.SIGLIP,),
    text=(cohere.COHERE2, cohere.COHERE),
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=_MAPS | layers_at({"projector.norm": f"{_PROJECTOR}layernorm"}),
    feature_layer=-1,
    fixed=_fixed(
        _aligned,
        final_norm=False,
        projector_norm="layer",
        projector_norm_eps=lambda config: number(config, _EPS, 1e-6),
    ),
    refusals=refusals(ONE_LAYER, only(_STRATEGY, "full")),
    # Its class leaves out the factor on logits.
    text_fixed={"logit_scale": None},
    tied=tied_by_default(True),
    token="image_token_index",
    settings={
        _FACTOR: lambda vision: vision.shuffle,
        _WIDTH: lambda vision: sum(_inner(vision)),
        _EPS: lambda vision: vision.projector_norm_eps,
        _LAYER: -1,
        _STRATEGY: "full",
    },
    notes="As Command A Vision, with a norm before the gated projector and none after the tower.",
)
