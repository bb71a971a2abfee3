"""Mistral 3: the tower of Pixtral, a map of neighbouring patches, a projector, and a decoder.

Sources: `transformers` 5.23, models/mistral3; 5.24, models/lighton_ocr.
"""

from dataclasses import replace

from mimo_launch.hugging_face.decoders import NORM_EPS
from mimo_launch.hugging_face.families import llava, mistral, mistral4, pixtral, qwen
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.tensors import Place, layers_at
from mimo_launch.hugging_face.towers import (
    ACTIVATION_REFUSED,
    activation_of_projector,
    theirs_of_projector,
)
from mimo_launch.hugging_face.wholes import ONE_LAYER, TowerAndDecoder, tied_by_default

_PROJECTOR, _BIAS = "multi_modal_projector.", "multimodal_projector_bias"
_TEXT = (mistral.MISTRAL, mistral.MINISTRAL3, mistral4.MISTRAL4)
_MERGE = "spatial_merge_size"


def _norm_eps(config: Config) -> float:
    """Return the epsilon of the decoder's norms, and of the projector's."""
    text = section(config, "text_config")
    defaults = {each.model_type: each.defaults for each in _TEXT}
    return number(defaults.get(str(text.get("model_type")), {}) | text, "rms_norm_eps", NORM_EPS)


MISTRAL3 = TowerAndDecoder(
    model_type="mistral3",
    architecture="Mistral3ForConditionalGeneration",
    published=("mistralai/Mistral-Small-3.1-24B-Instruct-2503",),
    towers=(pixtral.PIXTRAL,),
    text=_TEXT,
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector={
        "projector.norm.weight": Place(f"{_PROJECTOR}norm.weight"),
        "projector.merge.weight": Place(f"{_PROJECTOR}patch_merger.merging_layer.weight"),
        **layers_at(llava.PROJECTOR_LAYERS),
    },
    feature_layer=-1,
    fixed={
        "final_norm": False,
        "shuffle": lambda config: number(config, _MERGE, 2),
        "pooling": "linear",
        "projector": "mlp",
        "projector_mlp": None,
        "projector_activation": activation_of_projector,
        "projector_bias": lambda config: bool(config.get(_BIAS, False)),
        "projector_norm_eps": _norm_eps,
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
        _MERGE: lambda vision: vision.shuffle,
        "projector_hidden_act": theirs_of_projector,
        _BIAS: lambda vision: vision.projector_bias,
        "vision_feature_layer": -1,
    },
    notes="`pooling: linear`: a row is a linear map, without bias, of the patches of a square, "
    "each after the norm of the projector. Between the lines of an image comes the token "
    "`image_break_token`, after its last row `image_end_token`, as in the processor of the model; "
    "both are text. Without `tie_word_embeddings` the output layer is not the embedding.",
)
_ENCODER, _PROJECTION = "vision_encoder.", "vision_projection."
LIGHTON_OCR = replace(
    MISTRAL3,
    model_type="lighton_ocr",
    architecture="LightOnOcrForConditionalGeneration",
    published=("lightonai/LightOnOCR-1B-1025",),
    text=(qwen.QWEN3,),
    tower_names=(
        (f"model.{_ENCODER}", ""),
        (_ENCODER, ""),
        (f"model.{_PROJECTION}", _PROJECTOR),
        (_PROJECTION, _PROJECTOR),
    ),
    text_names=llava.TEXT_NAMES[2:],
    feature_layer=None,
    fixed={**MISTRAL3.fixed, "projector_activation": "gelu", "projector_bias": False},
    refusals=refusals(),
    tied=tied_by_default(True),
    token="image_token_id",
    settings={_MERGE: lambda vision: vision.shuffle},
    notes="A Mistral 3 with a Qwen3. No tokens come between the lines of an image or after it.",
)
