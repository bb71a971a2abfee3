"""ColQwen2: a Qwen2-VL without an output layer, before a map for retrieval, which is left out.

Sources: arXiv:2407.01449; `transformers` 5.24, models/colqwen2.
"""

from collections.abc import Mapping
from typing import Any

from mimo_launch.hugging_face.families.qwen2_vl import QWEN2_VL
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.nested import Nested, NestedWhole
from mimo_launch.hugging_face.refusals import left_out, refusals
from mimo_launch.hugging_face.wholes import Tokens

_WHERE, _MAP = "vlm_config", "embedding_proj_layer."


def _config_of(models: Mapping[str, Any], tokens: Tokens) -> Config:
    inner = QWEN2_VL.config_of(models["vit"], models["decoder"], tokens["vit"] or 0)
    return {"model_type": "colqwen2", _WHERE: inner}


COLQWEN2 = NestedWhole(
    model_type="colqwen2",
    architecture="ColQwen2ForRetrieval",
    published=("vidore/colqwen2-v1.0-hf",),
    parts=(
        Nested(
            family=QWEN2_VL.vision,
            where=(_WHERE, "vision_config"),
            prefixes=(("vlm.visual.", ""), ("vlm.model.visual.", "")),
        ),
        Nested(
            family=QWEN2_VL.text,
            where=(_WHERE, "text_config"),
            prefixes=(
                ("vlm.language_model.", "model."),
                ("vlm.model.language_model.", "model."),
                ("vlm.model.", "model."),
            ),
            # Files hold no output layer.
            around=lambda _: {"tie_word_embeddings": True},
        ),
    ),
    refusals=refusals(left_out("the map for retrieval")),
    left_out=(_MAP,),
    config_of=_config_of,
    needs=frozenset({"decoder", "vit"}),
    rank=1,
    notes="It trains as a Qwen2-VL with the embedding as its output layer; `export` copies the map "
    "for retrieval from the folder that the weights came from.",
)
