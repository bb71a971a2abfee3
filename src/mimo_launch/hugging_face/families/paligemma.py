"""PaliGemma 1 and 2: a SigLIP, one linear map, and a Gemma that sees its prompt in both directions.

Sources: arXiv:2407.07726, arXiv:2412.03555; `transformers` 5.24, models/paligemma.
"""

from mimo_launch.hugging_face.families import llava, siglip_clip
from mimo_launch.hugging_face.families.gemma import BOTH_WAYS, GEMMA, GEMMA2
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.tensors import layers_at
from mimo_launch.hugging_face.towers import PLAIN_PROJECTOR
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default

_TEXT = {each.model_type: each for each in (GEMMA, GEMMA2)}
_WIDTH, _USUAL = "projection_dim", 2048


def _is_other_width(config: Config) -> bool:
    text = config.get("text_config") or {}
    family = _TEXT.get(str(text.get("model_type")), GEMMA)
    return bool(number(config, _WIDTH, _USUAL) != family.whole(text)["hidden_size"])


PALIGEMMA = TowerAndDecoder(
    model_type="paligemma",
    architecture="PaliGemmaForConditionalGeneration",
    published=("google/paligemma-3b-pt-224", "google/paligemma2-3b-pt-224"),
    towers=(siglip_clip.SIGLIP,),
    text=tuple(_TEXT.values()),
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=layers_at({"projector.linear": "multi_modal_projector.linear"}),
    fixed={
        "final_norm": True, "shuffle": 1, "projector": "linear", "projector_activation": "gelu",
        **PLAIN_PROJECTOR,
    },
    text_fixed={"bidirectional_prompts": True},
    text_ignores=(BOTH_WAYS,),
    refusals=refusals(
        where(_WIDTH, "other than the width of language", _is_other_width, _USUAL)
    ),
    tied=tied_by_default(True),
    token="image_token_index",
    row_width=_WIDTH,
    notes="Images and the text before the first token that is learnt see each other "
    "(`bidirectional_prompts`), as `transformers` does with `token_type_ids` of 0 for them. Images "
    "have one size, the one of the tower.",
)  # fmt: skip
