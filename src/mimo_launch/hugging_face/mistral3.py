"""Mistral 3: the tower of Pixtral, a map of neighbouring patches, a projector, and a decoder.

Decides: what the settings of the whole and of its projector mean.
Relies on: `tower_and_decoder`; `pixtral` for the tower, `decoder` and `ministral3` for the text
part; `llava` for the names of the parts, which are the same.
Leaves: the tokens between the lines of an image to `tokenizer`.

Source: `transformers` 5.23, models/mistral3.
"""

from typing import Any

from mimo_launch.hugging_face import decoder, llava, ministral3, pixtral, towers
from mimo_launch.hugging_face.family import Place, layers_at
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.refusals import one_of, refusals, where
from mimo_launch.hugging_face.tower_and_decoder import (
    ONE_LAYER,
    TowerAndDecoder,
    layers_used,
    tied_by_default,
)
from mimo_launch.spec.spec import VitModel

_PROJECTOR = "multi_modal_projector."
_BIAS = "multimodal_projector_bias"
_SHUFFLE = 2


def _fixed(config: Config, inner: Config) -> dict[str, Any]:
    layers = pixtral.VISION.keys(inner)["layers"]
    return {
        "layers": layers_used(config, inner, default=-1, layers=layers),
        "final_norm": False,
        "shuffle": number(config, "spatial_merge_size", _SHUFFLE),
        "pooling": "linear",
        "projector": "mlp",
        "projector_mlp": None,
        "projector_activation": towers.activation_of(config, "projector_hidden_act"),
        "projector_bias": bool(config.get(_BIAS, False)),
        # As the norms of the decoder.
        "projector_norm_eps": number(
            section(config, "text_config"), "rms_norm_eps", decoder.NORM_EPS
        ),
        "projector_norm": "rms",
        "projector_norm_offset": False,
    }


def _settings(vision: VitModel, token: int) -> Config:
    return {
        "image_token_index": token,
        "spatial_merge_size": vision.shuffle,
        "projector_hidden_act": towers.theirs(vision.projector_activation),
        _BIAS: vision.projector_bias,
        "vision_feature_layer": -1,
    }


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
    fixed=_fixed,
    refusals=refusals(
        ONE_LAYER,
        one_of("projector_hidden_act", towers.ACTIVATIONS, "gelu"),
        where(
            _BIAS,
            "other than `true` and `false`",
            lambda config: not isinstance(config.get(_BIAS, False), bool),
        ),
    ),
    # Folders that say nothing are older than the default of today.
    tied=tied_by_default(False),
    settings=_settings,
)
