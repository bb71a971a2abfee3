"""Cosmos 3 Omni: a Qwen3-VL under other names; what generates is left out.

Source: `transformers` 5.24, models/cosmos3_omni.
"""

from dataclasses import replace

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import LAYERS
from mimo_launch.hugging_face.families.qwen3_vl import QWEN3_VL
from mimo_launch.hugging_face.refusals import left_out, refusals
from mimo_launch.hugging_face.tensors import Dropped, Tensors, in_layers
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default, width_refused

ENDS = ("q", "k", "v", "out")
_NAMES = {
    **{f"attention.{x}": f"self_attn.to_{y}" for x, y in zip("qkvo", ENDS, strict=True)},
    **{f"attention.{x}_norm": f"self_attn.norm_{x}" for x in "qk"},
}
# What generates stands in the same layers.
GENERATES = (
    "*.add_?_proj.*", "*.to_add_out.*", "*.norm_added_?.*", "*moe_gen*", "*_for_gen.*",
)  # fmt: skip
_TENSORS = decoders.TENSORS | in_layers(LAYERS, _NAMES)
_LOADED = Tensors(
    {
        ours: theirs.replace("model.", "model.language_model.")
        for ours, theirs in decoders.TENSORS.table.items()
        if isinstance(theirs, str)
    }
)
# A part alone of this type has the names of a Qwen3-VL, which `registry` finds later.
_TEXT = replace(
    QWEN3_VL.text,
    tensors=Tensors(_TENSORS.table, (*_TENSORS.dropped, *map(Dropped, GENERATES))),
    # Of versions before.
    other_tensors=decoders.TENSORS,
    loaded=_LOADED,
)
TEXT_NAMES = (
    *((each, f"model.{each}") for each in ("embed_tokens.", "layers.", "norm.")),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
)
GENERATING = (
    *(f"{kind}proj_{end}." for kind in ("", "audio_", "action_") for end in ("in", "out")),
    "audio_modality_embed", "action_modality_embed", "time_embedder.", "norm_moe_gen.",
)  # fmt: skip
_VISION = ("blocks.", "merger.", "patch_embed.", "pos_embed.", "deepstack_merger_list.")
COSMOS3_OMNI = TowerAndDecoder(
    model_type="cosmos3_omni",
    architecture="Cosmos3OmniForConditionalGeneration",
    published=("nvidia/Cosmos3-Nano",),
    towers=(QWEN3_VL.vision,),
    old_types={"qwen3_vl": QWEN3_VL.vision, "cosmos3_omni": QWEN3_VL.vision},
    text=(_TEXT,),
    tower_names=(*((each, each) for each in _VISION), ("model.visual.", "")),
    text_names=TEXT_NAMES,
    projector={},
    fixed={},
    refusals=refusals(width_refused(QWEN3_VL.vision), left_out("what generates")),
    beside=GENERATING,
    tied=tied_by_default(False),
    token="image_token_id",
    rank=1,
    notes="The same model as a Qwen3-VL. In its files the maps of attention are `to_q`, `to_k`, "
    "`to_v` and `to_out`, its norms `norm_q` and `norm_k`; `export` writes them so.",
)  # fmt: skip
