"""EXAONE 4.5: the tower of Qwen2.5-VL with fewer key heads, and an EXAONE 4.

Source: `transformers` 5.24, models/exaone4_5.
"""

from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face.families import exaone4
from mimo_launch.hugging_face.families.qwen2_vl import QWEN2_5_VL_VISION
from mimo_launch.hugging_face.family import Video
from mimo_launch.hugging_face.refusals import of_type, refusals
from mimo_launch.hugging_face.tensors import QKV, Dropped, fused, in_layers
from mimo_launch.hugging_face.wholes import VisionAndText


def _rows(model: Any) -> list[int]:
    keys = (model.kv_heads or model.heads) * (model.hidden // model.heads)
    return [model.hidden, keys, keys]


_FURTHER = "mtp."
EXAONE4_5 = VisionAndText(
    model_type="exaone4_5",
    architecture="Exaone4_5_ForConditionalGeneration",
    published=("LGAI-EXAONE/EXAONE-4.5-33B",),
    vision=replace(
        QWEN2_5_VL_VISION,
        model_type="exaone4_5_vision",
        architecture="Exaone4_5_VisionModel",
        settings=QWEN2_5_VL_VISION.settings.but({"kv_heads": ("num_key_value_heads", 8)}),
        tensors=QWEN2_5_VL_VISION.tensors | in_layers("blocks.*.", fused("attn.qkv", QKV, _rows)),
        video=Video("none"),
        rank=1,
    ),
    text=replace(
        exaone4.EXAONE4,
        tensors=replace(
            exaone4.EXAONE4.tensors,
            dropped=(*exaone4.EXAONE4.tensors.dropped, Dropped(f"{_FURTHER}*")),
        ),
    ),
    nested=True,
    beside=(_FURTHER,),
    # The first folders of this family call the type of their text `exaone4_5_text`.
    refused=refusals(of_type("text_config", "exaone4", "exaone4_5_text")),
    notes="Language counts tokens on one axis, those of images and videos as well. Layers that "
    "predict further tokens are left out.",
)
