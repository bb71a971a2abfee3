"""DeepSeek-VL: all states of a SigLIP after its last norm, a projector of two maps, and a Llama.

Sources: arXiv:2403.05525; `transformers` 5.24, models/deepseek_vl.
"""

from mimo_launch.hugging_face.families import llama, siglip_clip
from mimo_launch.hugging_face.refusals import NOTHING
from mimo_launch.hugging_face.tensors import layers_at
from mimo_launch.hugging_face.towers import PLAIN_PROJECTOR
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default

_ALIGNER = "aligner."
DEEPSEEK_VL = TowerAndDecoder(
    model_type="deepseek_vl",
    architecture="DeepseekVLForConditionalGeneration",
    published=("deepseek-community/deepseek-vl-1.3b-chat",),
    towers=(siglip_clip.SIGLIP,),
    text=(llama.LLAMA,),
    tower_names=(("model.vision_model.", ""), (f"model.{_ALIGNER}", _ALIGNER)),
    text_names=(("model.language_model.", "model."), ("lm_head.", "lm_head.")),
    projector=layers_at(
        {"projector.up": f"{_ALIGNER}linear1", "projector.down": f"{_ALIGNER}linear2"}
    ),
    fixed={
        "final_norm": True, "shuffle": 1, "projector": "mlp", "projector_activation": "gelu",
        **PLAIN_PROJECTOR,
    },
    refusals=NOTHING,
    tied=tied_by_default(True),
    token="image_token_id",
    notes="Images have one size, the one of the tower. The 7 B models have a second tower, type "
    "`deepseek_vl_hybrid`, and are not read.",
)  # fmt: skip
