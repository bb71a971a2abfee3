"""Qianfan-OCR: an InternVL with a Qwen3 in the names of its first folders.

Source: `transformers` 5.24, models/qianfan_ocr.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families import qwen
from mimo_launch.hugging_face.families.internvl import INTERN_VIT, INTERNVL
from mimo_launch.hugging_face.tensors import (
    Beyond,
    Reshaped,
    fused_qkv,
    in_layers,
    layers_at,
    patches,
    positions,
)
from mimo_launch.hugging_face.wholes import tied_by_default

_PROJECTOR = "mlp1."
QIANFAN_VIT = replace(
    INTERN_VIT,
    model_type="qianfan_ocr_vision",
    architecture="QianfanOCRVisionModel",
    tensors=replace(
        INTERN_VIT.tensors
        | {
            "patch.weight": patches("embeddings.patch_embedding.weight"),
            "patch.bias": "embeddings.patch_embedding.bias",
            "positions.weight": positions("embeddings.position_embedding", tokens=1),
            "class_token.weight": Reshaped(
                "embeddings.class_embedding", lambda x: (1, 1, x.hidden)
            ),
            **in_layers(
                "encoder.layers.*.",
                {
                    "attention_norm": "norm1",
                    "mlp_norm": "norm2",
                    **fused_qkv("attn.qkv"),
                    **{f"attention.{x}_norm": f"attention.{x}_norm" for x in "qk"},
                    "attention.o": "attn.proj",
                    "mlp.up": "mlp.fc1",
                    "mlp.down": "mlp.fc2",
                    "attention_scale.weight": "ls1",
                    "mlp_scale.weight": "ls2",
                },
            ),
        },
        dropped=(Beyond("encoder.layers."), *INTERN_VIT.tensors.dropped[1:]),
    ),
    defaults={"attention_bias": True, "drop_path_rate": 0.1},
    random=(*INTERN_VIT.random, "drop_path_rate"),
)
QIANFAN_OCR = replace(
    INTERNVL,
    model_type="qianfan_ocr",
    architecture="QianfanOCRForConditionalGeneration",
    published=("baidu/Qianfan-OCR",),
    towers=(QIANFAN_VIT,),
    text=(qwen.QWEN3,),
    tower_names=(("vision_model.", ""), (_PROJECTOR, _PROJECTOR)),
    # transformers 5.24 inserts `encoder.` as it saves.
    text_names=(
        ("language_model.model.", "model."),
        ("language_model.model.encoder.", "model."),
        ("language_model.lm_head.", "lm_head."),
    ),
    projector=layers_at(
        {
            "projector.norm": f"{_PROJECTOR}0",
            "projector.up": f"{_PROJECTOR}1",
            "projector.down": f"{_PROJECTOR}3",
        }
    ),
    tied=tied_by_default(False),
    videos=None,
    rank=1,
    notes="An InternVL in other names. Without `drop_path_rate` in `vision_config` it is 0.1, "
    "which is refused; 0 is read.",
)
