"""Idefics3 and SmolVLM: a SigLIP on images of any size, one linear map without bias, and a Llama.

Decides: what their settings mean, and the names of the parts in their files.
Relies on: `whole_models`; `vit` for the tower, `decoder` for the text part.
Leaves: cutting images into tiles to `cut_rules`.

Sources: arXiv:2408.12637, arXiv:2504.05299; `transformers` 5.23, models/idefics3, models/smolvlm.
"""

from dataclasses import replace
from functools import partial

from mimo_launch.hugging_face import decoder, vit
from mimo_launch.hugging_face.family import Family, layers_at
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.refusals import Refusals
from mimo_launch.hugging_face.settings import PLAIN_PROJECTOR
from mimo_launch.hugging_face.whole_models import TowerAndDecoder, tied_by_default
from mimo_launch.spec.spec import VitModel

_PROJECTOR = "model.connector.modality_projection."
_VISION_NAMES = (("model.vision_model.", ""), (_PROJECTOR, _PROJECTOR))
_TEXT_NAMES = (("model.text_model.", "model."), ("lm_head.", "lm_head."))
_SIZES = {"hidden_size": 1152, "intermediate_size": 3072, "num_attention_heads": 16}
_SIGLIP = vit.VitFamily(False, 32, "gelu_pytorch_tanh", 1e-6, "")


def _whole(model_type: str, name: str) -> TowerAndDecoder:
    tower: Family[VitModel] = replace(
        vit.BY_TYPE[vit.SIGLIP],
        model_type=f"{model_type}_vision",
        # A SigLIP with pooling lacks this norm; here it is always present.
        keys=lambda config: (
            vit.keys(_SIGLIP, _SIZES | config) | {"interpolation": "nearest", "final_norm": True}
        ),
        not_computed=vit.not_computed(_SIGLIP),
        config=partial(vit.config_of, f"{model_type}_vision"),
        architecture=f"{name}VisionTransformer",
    )
    llama = next(each for each in decoder.FAMILIES if each.model_type == "llama")
    return TowerAndDecoder(
        model_type=model_type,
        architecture=f"{name}ForConditionalGeneration",
        # Before 4.50 the part had the type of the whole.
        towers={tower.model_type: tower, model_type: tower},
        text={llama.model_type: llama},
        tower_names=_VISION_NAMES,
        text_names=_TEXT_NAMES,
        projector=layers_at({"projector.linear": f"{_PROJECTOR}proj"}),
        fixed={
            "shuffle": lambda config: number(config, "scale_factor", 2),
            "projector": "linear",
            "projector_activation": "gelu",
            **PLAIN_PROJECTOR,
            "projector_bias": False,
        },
        refusals=Refusals(),
        tied=tied_by_default(False),
        token="image_token_id",
        settings={"scale_factor": lambda vision: vision.shuffle},
    )


WHOLES = (
    _whole("idefics3", "Idefics3"),
    # Each frame of a video is an image after its minute and second.
    replace(_whole("smolvlm", "SmolVLM"), videos={"time": "text_clock", "per_second": None}),
)
