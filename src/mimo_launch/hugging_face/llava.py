"""LLaVA: a vision tower, a projector of two linear maps, and a decoder.

Decides: which layers of the tower a LLaVA uses, and the names of the parts in its files.
Relies on: `whole_models`; `vit` and `decoder` for the parts.
Leaves: finding the folder's parts to `registry`.

Sources: arXiv:2310.03744; `transformers` 5.23, models/llava, with the first prefixes in its files;
other versions between 4.36 and 5 use the others.
"""

from math import prod
from typing import Any

from mimo_launch.hugging_face import decoder, pixtral, vit
from mimo_launch.hugging_face.family import layers_at
from mimo_launch.hugging_face.refusals import only, refusals, where
from mimo_launch.hugging_face.settings import (
    ACTIVATION_REFUSED,
    PLAIN_PROJECTOR,
    activation_of_projector,
    theirs_of_projector,
)
from mimo_launch.hugging_face.whole_models import ONE_LAYER, TowerAndDecoder

MODEL_TYPE = "llava"
_STRATEGY = "vision_feature_select_strategy"
_PROJECTOR = "multi_modal_projector."
VISION_NAMES = (
    ("vision_tower.", ""),
    ("vision_tower.vision_model.", ""),
    ("model.vision_tower.", ""),
    ("model.vision_tower.vision_model.", ""),
    (_PROJECTOR, _PROJECTOR),
    (f"model.{_PROJECTOR}", _PROJECTOR),
)
TEXT_NAMES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
)
# A folder without a type has a CLIP.
_TOWERS = {
    **{name: vit.BY_TYPE[name] for name in (vit.CLIP, vit.SIGLIP)},
    pixtral.MODEL_TYPE: pixtral.VISION,
}
LAYERS = {"projector.up": f"{_PROJECTOR}linear_1", "projector.down": f"{_PROJECTOR}linear_2"}


# For a tower whose states after some layer become rows, one row each.
FIXED: dict[str, Any] = {
    "final_norm": False, "shuffle": 1, "projector": "mlp",
    "projector_activation": activation_of_projector, **PLAIN_PROJECTOR,
}  # fmt: skip


WHOLE = TowerAndDecoder(
    model_type=MODEL_TYPE,
    architecture="LlavaForConditionalGeneration",
    towers=_TOWERS,
    text={each.model_type: each for each in decoder.FAMILIES},
    tower_names=VISION_NAMES,
    text_names=TEXT_NAMES,
    projector=layers_at(LAYERS),
    feature_layer=-2,
    fixed=FIXED,
    refusals=refusals(
        ONE_LAYER,
        # `default` leaves out the first token of an image, which is the class token of CLIP.
        where(
            _STRATEGY,
            "other than `default` of CLIP, `full`",
            lambda config: (
                config.get(_STRATEGY, "default")
                != ("default" if config["vision_config"]["model_type"] == vit.CLIP else "full")
            ),
            "default",
        ),
        ACTIVATION_REFUSED,
        only("multimodal_projector_bias", True),
    ),
    tied=lambda *configs: any(each.get("tie_word_embeddings") for each in configs),
    token="image_token_index",
    # All layers of our tower are used.
    settings={
        "image_seq_length": lambda vision: prod(vision.image or (1, 1)),
        "projector_hidden_act": theirs_of_projector,
        "multimodal_projector_bias": True,
        "vision_feature_layer": -1,
        _STRATEGY: lambda vision: "default" if vision.class_token else "full",
    },
)
