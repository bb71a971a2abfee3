"""InternVL: a vision transformer with layer scale, a projector after a norm, and a Qwen.

Decides: what the settings of the whole and of its projector mean.
Relies on: `whole_models`; `intern_vit` for the tower, `decoder` and `moe_decoder` for the text
part; `llava` for the names of the parts, which are the same.
Leaves: cutting images into tiles to `cut_rules`.

Sources: arXiv:2508.18265; `transformers` 5.23, models/internvl.
"""

from collections.abc import Iterator
from math import prod

from mimo_launch.hugging_face import decoder, intern_vit, llava, moe_decoder
from mimo_launch.hugging_face.family import layers_at
from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.hugging_face.refusals import Refusal, only, refusals
from mimo_launch.hugging_face.settings import (
    ACTIVATION_REFUSED,
    PLAIN_PROJECTOR,
    activation_of_projector,
    theirs_of_projector,
)
from mimo_launch.hugging_face.whole_models import (
    ONE_LAYER,
    TowerAndDecoder,
    tied_by_default,
)

MODEL_TYPE = "internvl"
# For the norm before the projector, in any configuration.
PROJECTOR_EPS = 1e-5
_RATIO = 0.5


def shuffle_of(config: Config) -> int:
    """Return the side, in patches, of the square that becomes one row. Raises: ConfigError."""
    ratio = float(number(config, "downsample_ratio", _RATIO))
    return max(1, int(1 / ratio)) if ratio > 0 else 1


def _ratio_refused(config: Config) -> Iterator[str]:
    ratio = float(number(config, "downsample_ratio", _RATIO))
    if ratio <= 0 or 1 / ratio != int(1 / ratio):
        yield f"downsample_ratio: {short(ratio)}"


RATIO_REFUSED = Refusal("`downsample_ratio` that is no 1 / N", _ratio_refused)


WHOLE = TowerAndDecoder(
    model_type=MODEL_TYPE,
    architecture="InternVLForConditionalGeneration",
    towers={intern_vit.VISION.model_type: intern_vit.VISION},
    # Families of `decoder` come first; a part without a type is a Qwen2.
    text={
        each.model_type: each
        for each in sorted(
            (*decoder.FAMILIES, *moe_decoder.FAMILIES), key=lambda each: each.model_type != "qwen2"
        )
    },
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=layers_at({**llava.LAYERS, "projector.norm": "multi_modal_projector.layer_norm"}),
    feature_layer=-1,
    fixed={
        # The norm after the last layer is not part of the layers' states.
        "final_norm": lambda config: (
            config.get("vision_feature_layer", -1) == -1
            and not config["vision_config"].get("use_mean_pooling", True)
        ),
        "shuffle": shuffle_of,
        "projector": "mlp",
        "projector_activation": activation_of_projector,
        **PLAIN_PROJECTOR,
        "projector_norm_eps": PROJECTOR_EPS,
        "projector_norm": "layer",
    },
    refusals=refusals(
        ONE_LAYER,
        RATIO_REFUSED,
        only("vision_feature_select_strategy", "default"),
        ACTIVATION_REFUSED,
    ),
    tied=tied_by_default(True),
    token="image_token_id",
    settings={
        "image_seq_length": lambda vision: prod(
            side // vision.shuffle for side in vision.image or (0, 0)
        ),
        "downsample_ratio": lambda vision: 1 / vision.shuffle,
        "projector_hidden_act": theirs_of_projector,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
    },
    # Each frame is an image after its number.
    videos={"time": "text_number", "per_second": None},
)
