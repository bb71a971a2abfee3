"""Janus: a vision transformer, a projector of two linear maps, and a Llama; what draws is left out.

Sources: arXiv:2410.13848, arXiv:2501.17811; `transformers` 5.24, models/janus.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families import llama, siglip_clip
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.refusals import left_out, one_of, only, refusals
from mimo_launch.hugging_face.settings import Computed
from mimo_launch.hugging_face.tensors import layers_at
from mimo_launch.hugging_face.towers import ACTIVATIONS, PLAIN_PROJECTOR, REST
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default, width_refused

_ALIGNER = "aligner."
_SETTINGS = siglip_clip.settings(is_clip=False, patch=16, activation="gelu", norm_eps=1e-6)
_TOWER = Family(
    model_type="janus_vision_model",
    kind="vit",
    architecture="JanusVisionModel",
    settings=replace(
        _SETTINGS.but(
            {
                "mlp": Computed(
                    lambda x: int(number(x, "hidden_size") * number(x, "mlp_ratio", 4.0)),
                    lambda model: {"mlp_ratio": model.mlp_width / model.hidden},
                    "`hidden_size` x `mlp_ratio`; 4",
                ),
                "qkv_bias": ("attention_bias", True),
            }
        ),
        rest={**REST, "final_norm": True},
    ),
    tensors=siglip_clip.TENSORS
    | {"layers.*.attention.o": "encoder.layers.*.self_attn.projection_layer"},
    defaults={
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 384,
        "projection_dim": 2048,
    },
    refused=refusals(
        one_of("hidden_act", ACTIVATIONS, "gelu"), only("use_qk_norm", False), only("depth", 2)
    ),
    row_width="projection_dim",
    random=("attention_dropout", "hidden_dropout_rate", "projection_dropout"),
)
JANUS = TowerAndDecoder(
    model_type="janus",
    architecture="JanusForConditionalGeneration",
    published=("deepseek-community/Janus-Pro-1B",),
    towers=(_TOWER,),
    text=(llama.LLAMA,),
    tower_names=(("model.vision_model.", ""), (f"model.{_ALIGNER}", _ALIGNER)),
    text_names=(("model.language_model.", "model."), ("lm_head.", "lm_head.")),
    projector=layers_at({
        "projector.up": f"{_ALIGNER}fc1", "projector.down": f"{_ALIGNER}hidden_layers.0",
    }),
    fixed={
        "shuffle": 1, "projector": "mlp", **PLAIN_PROJECTOR,
        "projector_activation": lambda config: _TOWER.keys(config["vision_config"])["activation"],
    },
    refusals=refusals(width_refused(_TOWER), left_out("what generates images")),
    beside=("model.vqmodel.", "model.generation_"),
    tied=tied_by_default(True),
    token="image_token_id",
    rank=1,
    notes="Images have one size, the one of the tower. What generates images is left out.",
)  # fmt: skip
