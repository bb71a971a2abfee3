"""Idefics3 and SmolVLM: a SigLIP on images of any size, one linear map without bias, and a Llama.

Sources: arXiv:2408.12637, arXiv:2504.05299; `transformers` 5.23, models/idefics3, models/smolvlm.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face.families import llama, siglip_clip
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.tensors import layers_at
from mimo_launch.hugging_face.towers import PLAIN_PROJECTOR
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default

_PROJECTOR = "model.connector.modality_projection."
_SETTINGS = siglip_clip.settings(
    is_clip=False, patch=32, activation="gelu_pytorch_tanh", norm_eps=1e-6
)


def _whole(
    model_type: str, name: str, published: str, notes: str, videos: Mapping[str, Any] | None
) -> TowerAndDecoder:
    tower = replace(
        siglip_clip.SIGLIP,
        model_type=f"{model_type}_vision",
        architecture=f"{name}VisionTransformer",
        # A SigLIP with pooling lacks the last norm; here it is always present.
        settings=replace(
            _SETTINGS, rest={**_SETTINGS.rest, "interpolation": "nearest", "final_norm": True}
        ),
        defaults={"hidden_size": 1152, "intermediate_size": 3072, "num_attention_heads": 16},
        prefixes=(("", ""),),
        elsewhere=(),
        may_end_early=False,
    )
    return TowerAndDecoder(
        model_type=model_type,
        architecture=f"{name}ForConditionalGeneration",
        published=(published,),
        towers=(tower,),
        # Before 4.50 the part had the type of the whole.
        old_types={model_type: tower},
        text=(llama.LLAMA,),
        tower_names=(("model.vision_model.", ""), (_PROJECTOR, _PROJECTOR)),
        text_names=(("model.text_model.", "model."), ("lm_head.", "lm_head.")),
        projector=layers_at({"projector.linear": f"{_PROJECTOR}proj"}),
        fixed={
            "shuffle": lambda config: number(config, "scale_factor", 2),
            "projector": "linear",
            "projector_activation": "gelu",
            **PLAIN_PROJECTOR,
            "projector_bias": False,
        },
        refusals=refusals(),
        tied=tied_by_default(False),
        token="image_token_id",
        settings={"scale_factor": lambda vision: vision.shuffle},
        videos=videos,
        notes=notes,
    )


IDEFICS3 = _whole(
    "idefics3",
    "Idefics3",
    "HuggingFaceM4/Idefics3-8B-Llama3",
    "`shuffle` is `scale_factor`. The processor makes an image larger, cuts it into tiles and "
    "writes text around each ([Tiles](media.md#tiles)); with `do_image_splitting: false` an image "
    "is one tile. `transformers` drops an image of zeros only and takes square images only; here "
    "both are ordinary images.",
    None,
)
# Each frame of a video is an image after its minute and second.
SMOLVLM = _whole(
    "smolvlm",
    "SmolVLM",
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
    "The same model as an Idefics3, which also reads videos.",
    {"time": "text_clock", "per_second": None},
)
