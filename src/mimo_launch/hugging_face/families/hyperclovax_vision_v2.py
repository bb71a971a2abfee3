"""HyperCLOVA X SEED Think: the tower of Qwen2.5-VL, a linear map, and a HyperCLOVA X.

Source: `transformers` 5.24, models/hyperclovax_vision_v2.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families.granite import HYPERCLOVAX
from mimo_launch.hugging_face.families.qwen2_vl import QWEN2_5_VL_VISION
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.refusals import NOTHING
from mimo_launch.hugging_face.tensors import layers_at
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default

_PROJECTOR, _OUT = "model.vision_projector.", ("out_hidden_size", 3584)
# Its template writes how long a video is, which is not read.
_TOWER = replace(QWEN2_5_VL_VISION, video=None)
HYPERCLOVAX_VISION_V2 = TowerAndDecoder(
    model_type="hyperclovax_vision_v2",
    architecture="HyperCLOVAXVisionV2ForConditionalGeneration",
    published=("naver-hyperclovax/HyperCLOVAX-SEED-Think-32B",),
    towers=(_TOWER,),
    # The published folder has the type of the whole.
    old_types={"qwen2_5_vl": _TOWER},
    text=(HYPERCLOVAX,),
    tower_names=(("model.vision_model.", ""), (_PROJECTOR, "vision_projector.")),
    text_names=(
        ("model.language_model.", "model."),
        ("model.language_model.model.", "model."),
        ("model.language_model.lm_head.", "lm_head."),
    ),
    projector=layers_at({"projector.after": "vision_projector"}),
    fixed={"projector_out": lambda config: number(config["vision_config"], *_OUT)},
    decides=("projector_out",),
    text_fixed={"scaled_rows": True},
    refusals=NOTHING,
    tied=tied_by_default(True),
    token="image_token_id",
    notes="`projector_out` is `out_hidden_size` of the tower. `embedding_multiplier` is a factor "
    "on rows of images as well (`scaled_rows`). Its videos are not read.",
)
