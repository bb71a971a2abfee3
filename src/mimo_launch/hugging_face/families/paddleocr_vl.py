"""PaddleOCR-VL: a SigLIP with rotary positions on images of any size, and an ERNIE 4.5 with M-RoPE.

Sources: arXiv:2510.14528; `transformers` 5.24, models/paddleocr_vl.
"""

from dataclasses import replace

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.families import siglip_clip
from mimo_launch.hugging_face.families.llama import ERNIE4_5
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.refusals import NOTHING
from mimo_launch.hugging_face.settings import Fixed
from mimo_launch.hugging_face.tensors import layers_at
from mimo_launch.hugging_face.towers import (
    ACTIVATIONS,
    PLAIN_PROJECTOR,
    REST,
    ROPES,
    axial_refusals,
)
from mimo_launch.hugging_face.wholes import TowerAndDecoder

_TIED, _PROJECTOR = "tie_word_embeddings", "projector."
TEXT = replace(
    ERNIE4_5,
    model_type="paddleocr_vl_text",
    architecture="PaddleOCRTextModel",
    published=(),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=2, head_size=128), **rotary.mrope((16, 24, 24), interleaved=False)
    ),
    prepared=rotary.plain_rope,
    rank=0,
    notes="",
)
_SETTINGS = siglip_clip.settings(
    is_clip=False, patch=14, activation="gelu_pytorch_tanh", norm_eps=1e-6
)
TOWER = Family(
    model_type="paddleocr_vl_vision",
    kind="vit",
    architecture="PaddleOCRVisionModel",
    settings=replace(
        _SETTINGS.but(
            {"positions": Fixed("learned+rope2d"), "shuffle": ("spatial_merge_size", 2)},
            {"rope_parameters": ROPES},
        ),
        rest={**REST, "interpolation": "linear", "final_norm": True},
    ),
    tensors=siglip_clip.TENSORS,
    defaults={
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "image_size": 384,
    },
    refused=axial_refusals(ACTIVATIONS, "gelu_pytorch_tanh"),
)  # fmt: skip


def _row_width(config: Config) -> int:
    tower = TOWER.keys(config["vision_config"])
    return int(tower["hidden"] * tower["shuffle"] ** 2)


PADDLEOCR_VL = TowerAndDecoder(
    model_type="paddleocr_vl",
    architecture="PaddleOCRVLForConditionalGeneration",
    published=("PaddlePaddle/PaddleOCR-VL",),
    towers=(TOWER,),
    # The published folder gives the tower the type of the whole.
    old_types={"paddleocr_vl": TOWER},
    text=(TEXT,),
    text_beside=True,
    # `transformers` loads the other names, and writes these.
    tower_names=(
        ("visual.vision_model.", ""),
        ("model.visual.vision_model.", ""),
        ("mlp_AR.", _PROJECTOR),
        (f"model.{_PROJECTOR}", _PROJECTOR),
    ),
    text_names=(
        *((each, each) for each in ("model.embed_tokens.", "model.layers.", "model.norm.")),
        ("model.language_model.", "model."),
        ("lm_head.", "lm_head."),
    ),
    projector=layers_at({
        "projector.norm": f"{_PROJECTOR}pre_norm",
        "projector.up": f"{_PROJECTOR}linear_1",
        "projector.down": f"{_PROJECTOR}linear_2",
    }),
    fixed={
        "projector": "mlp",
        "projector_activation": "gelu",
        **PLAIN_PROJECTOR,
        "projector_mlp": _row_width,
        # For the norm before the projector, in any configuration.
        "projector_norm_eps": 1e-5,
        "projector_norm_of": "patch",
    },
    refusals=NOTHING,
    # Files hold an output layer if it differs.
    tied=lambda *configs: any(each.get(_TIED, True) for each in configs),
    token="image_token_id",
    settings={},
    notes="`shuffle` is `spatial_merge_size` (2). An image is a video of one frame; videos are not "
    "read.",
)  # fmt: skip
