"""GLM-4.1V, GLM-4.5V and GLM-4.6V: a tower with a convolution, and decoders that rotate in part.

The published folders of GLM-4.6V have the types of the other two; the type `glm46v` of
transformers has the parts of a GLM-4.1V and another processor.

Sources: `transformers` 5.23, models/glm4v and models/glm4v_moe; 5.24, models/glm46v;
arXiv:2507.01006, arXiv:2508.06471.
"""

from dataclasses import replace

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.families import glm
from mimo_launch.hugging_face.family import Family, Video
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import of_type, refusals
from mimo_launch.hugging_face.settings import Computed, Settings
from mimo_launch.hugging_face.tensors import MLP, Reshaped
from mimo_launch.hugging_face.towers import (
    ALIASES,
    GATED,
    MERGER,
    MERGER_REST,
    ROPES,
    axial_refusals,
    merger_tensors,
)
from mimo_launch.hugging_face.wholes import VisionAndText

_IMAGE, _PATCH = ("image_size", 336), ("patch_size", 14)


def _image(config: Config) -> tuple[int, int]:
    side = int(number(config, *_IMAGE) // number(config, *_PATCH))
    return (side, side)


_SIZES = Settings(
    {
        "layers": ("depth", 24),
        "hidden": ("hidden_size", 1536),
        "heads": ("num_heads", 12),
        "patch": _PATCH,
        "channels": ("in_channels", 3),
        # `intermediate_size` is the width of the merger.
        "mlp": ("out_hidden_size", 4096),
        "shuffle": ("spatial_merge_size", 2),
        "temporal_patch": ("temporal_patch_size", 2),
        "image": Computed(
            _image,
            lambda model: {_IMAGE[0]: min(model.image or (1, 1)) * model.patch},
            "`image_size` / `patch_size`, twice; 336 pixels",
        ),
        "norm_eps": ("rms_norm_eps", 1e-5),
        "qkv_bias": ("attention_bias", False),
        "projector_mlp": ("intermediate_size", 13696),
    },
    {"hidden_act": "silu", "rope_parameters": ROPES},
    {
        **MERGER_REST, **MERGER, "positions": "learned+rope2d", "norm": "rms",
        "activation": "swiglu", "block_bias": False, "patch_norm": True,
        "projector": "gated",
    },
)  # fmt: skip


def _vision(model_type: str, architecture: str) -> Family:
    return Family(
        model_type=model_type,
        kind="vit",
        architecture=architecture,
        settings=_SIZES,
        tensors=merger_tensors(
            {
                "patch": "patch_embed.proj",
                "patch_norm": "post_conv_layernorm",
                "positions": "embeddings.position_embedding",
                "norm": "post_layernorm",
                "projector.convolution.weight": Reshaped(
                    "downsample.weight", lambda x: (x.mlp_width, x.hidden, x.shuffle, x.shuffle)
                ),
                "projector.convolution.bias": "downsample.bias",
                "projector.middle": "merger.proj",
                "projector.middle_norm": "merger.post_projection_norm",
                **{f"projector.mlp.{x}": f"merger.{x}_proj" for x in MLP},
            },
            {
                "attention_norm": "norm1",
                "mlp_norm": "norm2",
                "attention.o": "attn.proj",
                **{f"mlp.{x}": f"mlp.{x}_proj" for x in MLP},
            },
        ),
        refused=axial_refusals(GATED, "silu"),
        aliases=ALIASES,
        row_width="out_hidden_size",
        video=Video("text_after"),
        notes="`mlp` is the width of rows, too. Images of shards are resized as "
        "`Glm4vImageProcessor` does it: the limits are of the pixels of `temporal_patch` equal "
        "frames.",
    )  # fmt: skip


_MROPE = rotary.mrope((8, 12, 12), interleaved=False, also=rotary.factor_as_written)
_TEXT = Family(
    model_type="glm4v_text",
    kind="decoder",
    architecture="Glm4vTextModel",
    settings=decoders.decoder(
        # Heads fill the width, and queries, keys and values have biases, whatever it says.
        {**decoders.sizes(kv_heads=2), "head_dim": decoders.FILLED},
        qkv_bias=True,
        **_MROPE,
        rotary_factor=rotary.rotary_factor(1.0),
        rotary_interleaved=True,
        post_norms=True,
    ),
    tensors=glm.TENSORS,
    refused=glm.REFUSED,
    defaults={
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696,
        "num_hidden_layers": 40, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
    },
)  # fmt: skip
_TEXT_MOE = Family(
    model_type="glm4v_moe_text",
    kind="decoder",
    architecture="Glm4vMoeTextModel",
    settings=decoders.decoder(
        decoders.sizes(kv_heads=8),
        # It does not apply to the projection after attention.
        qkv_bias=(glm.BIAS, True),
        **_MROPE,
        rotary_factor=rotary.rotary_factor(0.5),
        moe=decoders.GROUPED,
    ),
    tensors=decoders.GROUPED_TENSORS,
    refused=glm.REFUSED,
    aliases=decoders.ROUTED_ALIAS,
    defaults={**glm.GLM4_MOE.defaults, "vocab_size": 151424},
    notes="The loss that would balance its experts in `transformers` is not read: the correction "
    "biases do that. Layers that predict further tokens are left out.",
)
GLM4V = VisionAndText(
    model_type="glm4v",
    architecture="Glm4vForConditionalGeneration",
    published=("zai-org/GLM-4.1V-9B-Thinking",),
    vision=_vision("glm4v_vision", "Glm4vVisionModel"),
    text=_TEXT,
    nested=True,
    either_ties=True,
)
GLM4V_MOE = VisionAndText(
    model_type="glm4v_moe",
    architecture="Glm4vMoeForConditionalGeneration",
    published=("zai-org/GLM-4.5V",),
    vision=replace(_vision("glm4v_moe_vision", "Glm4vMoeVisionModel"), rank=1),
    text=_TEXT_MOE,
    nested=True,
    either_ties=True,
)
GLM46V = replace(
    GLM4V,
    model_type="glm46v",
    architecture="Glm46VForConditionalGeneration",
    published=("zai-org/GLM-4.6V",),
    refused=refusals(
        of_type("text_config", "glm4v_text"), of_type("vision_config", "glm4v_vision")
    ),
    either_ties=False,
    # Their sampling and the text of their times differ.
    reads_videos=False,
    rank=1,
    notes="A GLM-4.6V has one of the types above, and is read as such. This type is written again "
    "where weights came from one. Images of shards are resized as by `Glm46VImageProcessor`. Its "
    "videos (`Glm46VVideoProcessor`) are refused: they are sampled at other times, and the text "
    "after a patch gives tenths of a second.",
)
GLMGA = replace(
    GLM46V,
    model_type="glmga",
    published=(),
    rank=2,
    notes="A GLM-4.6V with images whose sides are also multiples of `patch_expand_factor`. Videos "
    "are not read.",
)
