"""VideoLLaMA 3: a SigLIP with rotary positions, a projector of two linear maps, and a Qwen2.

Sources: arXiv:2501.13106; `transformers` 5.24, models/video_llama_3.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families import llama, llava, qwen, siglip_clip
from mimo_launch.hugging_face.family import Family
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

_PROJECTOR = "projector."
_SETTINGS = siglip_clip.settings(
    is_clip=False, patch=16, activation="gelu_pytorch_tanh", norm_eps=1e-6
)
_TOWER = Family(
    model_type="video_llama_3_vision",
    kind="vit",
    architecture="VideoLlama3VisionModel",
    settings=replace(
        _SETTINGS.but({"image": None, "positions": Fixed("rope2d")}, {"rope_parameters": ROPES}),
        rest={**REST, "final_norm": True},
    ),
    tensors=siglip_clip.TENSORS,
    refused=axial_refusals(ACTIVATIONS, "gelu_pytorch_tanh"),
)
VIDEO_LLAMA_3 = TowerAndDecoder(
    model_type="video_llama_3",
    architecture="VideoLlama3ForConditionalGeneration",
    published=("lkhl/VideoLLaMA3-2B-Image-HF",),
    towers=(_TOWER,),
    text=(qwen.QWEN2, llama.LLAMA),
    tower_names=(("model.vision_model.", ""), (f"model.{_PROJECTOR}", _PROJECTOR)),
    text_names=(("model.language_model.", "model."), ("lm_head.", "lm_head.")),
    projector=layers_at(
        {"projector.up": f"{_PROJECTOR}readout.0", "projector.down": f"{_PROJECTOR}readout.2"}
    ),
    fixed={
        "shuffle": 1, "projector": "mlp", "projector_activation": "gelu", **PLAIN_PROJECTOR,
    },
    refusals=NOTHING,
    tied=llava.tied_if_said,
    token="image_token_id",
    notes="Each patch of an image is a row. Videos, of which four patches are averaged, are not "
    "read.",
)  # fmt: skip
