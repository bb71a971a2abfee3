"""Mistral 3: the tower of Pixtral, a map of neighbouring patches, a projector, and a decoder.

Decides: what the settings of the whole and of its projector mean.
Relies on: `whole_models`; `pixtral` for the tower, `decoder` and `ministral3` for the text
part; `llava` for the names of the parts, which are the same.
Leaves: the tokens between the lines of an image to `tokenizer`.

Source: `transformers` 5.23, models/mistral3.
"""

from mimo_launch.hugging_face import decoder, llava, ministral3, pixtral
from mimo_launch.hugging_face.family import Place, layers_at
from mimo_launch.hugging_face.folder import number, section
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.settings import (
    ACTIVATION_REFUSED,
    activation_of_projector,
    theirs_of_projector,
)
from mimo_launch.hugging_face.whole_models import (
    ONE_LAYER,
    TowerAndDecoder,
    tied_by_default,
)

_PROJECTOR = "multi_modal_projector."
_BIAS = "multimodal_projector_bias"


MISTRAL = next(each for each in decoder.FAMILIES if each.model_type == "mistral")
WHOLE = TowerAndDecoder(
    model_type="mistral3",
    architecture="Mistral3ForConditionalGeneration",
    towers={pixtral.MODEL_TYPE: pixtral.VISION},
    text={each.model_type: each for each in (MISTRAL, ministral3.TEXT)},
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector={
        "projector.norm.weight": Place(f"{_PROJECTOR}norm.weight"),
        "projector.merge.weight": Place(f"{_PROJECTOR}patch_merger.merging_layer.weight"),
        **layers_at(llava.LAYERS),
    },
    feature_layer=-1,
    fixed={
        "final_norm": False,
        "shuffle": lambda config: number(config, "spatial_merge_size", 2),
        "pooling": "linear",
        "projector": "mlp",
        "projector_mlp": None,
        "projector_activation": activation_of_projector,
        "projector_bias": lambda config: bool(config.get(_BIAS, False)),
        # The same as for the norms of the decoder.
        "projector_norm_eps": lambda config: number(
            section(config, "text_config"), "rms_norm_eps", decoder.NORM_EPS
        ),
        "projector_norm": "rms",
        "projector_norm_offset": False,
    },
    refusals=refusals(
        ONE_LAYER,
        ACTIVATION_REFUSED,
        where(
            _BIAS,
            "other than `true` and `false`",
            lambda config: not isinstance(config.get(_BIAS, False), bool),
        ),
    ),
    # Folders without the setting are older than today's default.
    tied=tied_by_default(False),
    token="image_token_index",
    settings={
        "spatial_merge_size": lambda vision: vision.shuffle,
        "projector_hidden_act": theirs_of_projector,
        _BIAS: lambda vision: vision.projector_bias,
        "vision_feature_layer": -1,
    },
)
