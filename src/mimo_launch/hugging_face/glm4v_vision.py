"""The tower of GLM-4.1V: a table of positions and rotation by place, a convolution, a gated merger.

Decides: what the vision part of its configuration means, and the names of its tensors.
Relies on: `qwen_vl` for patches and fused queries, keys and values.
Leaves: the text part to `glm4v` and `glm4v_moe`.

Source: `transformers` 5.23, models/glm4v; arXiv:2507.01006.
"""

from functools import partial
from typing import Any

from mimo_launch.hugging_face.family import Family, Place
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.qwen_vl import (
    ROPES,
    TOWER,
    videos_timed,
    vision_is_ignored,
    vision_names,
    vision_not_computed,
)
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.spec.spec import VitModel

_ACTIVATIONS = {"silu": "swiglu"}
_SIZES = Settings({
    "layers": ("depth", 24), "hidden": ("hidden_size", 1536), "heads": ("num_heads", 12),
    "patch": ("patch_size", 14), "channels": ("in_channels", 3),
    # `intermediate_size` is the width of the merger.
    "mlp": ("out_hidden_size", 4096), "shuffle": ("spatial_merge_size", 2),
    "temporal_patch": ("temporal_patch_size", 2),
})  # fmt: skip
_ENDS = {
    "patch": "patch_embed.proj",
    "patch_norm": "post_conv_layernorm",
    "positions": "embeddings.position_embedding",
    "norm": "post_layernorm",
}
_BLOCK = {
    "attention_norm": "norm1",
    "mlp_norm": "norm2",
    "attention.o": "attn.proj",
    **{f"mlp.{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
}


def _downsampling(model: VitModel) -> Place:
    sides = (model.shuffle, model.shuffle)
    return Place("downsample.weight", shape=(model.mlp_width, model.hidden, *sides))


_NAMES = vision_names(_ENDS, _BLOCK) | {
    "projector.convolution.weight": _downsampling,
    "projector.convolution.bias": "downsample.bias",
    "projector.middle": "merger.proj",
    "projector.middle_norm": "merger.post_projection_norm",
    **{f"projector.mlp.{x}": f"merger.{x}_proj" for x in ("gate", "up", "down")},
}


def _keys(config: Config) -> dict[str, Any]:
    sizes = _SIZES.keys(config)
    side = int(number(config, "image_size", 336) // sizes["patch"])
    return {
        **sizes,
        "positions": "learned+rope2d",
        "image": (side, side),
        **TOWER,
        "patch_bias": True,
        "norm_eps": number(config, "rms_norm_eps", 1e-5),
        "qkv_bias": bool(config.get("attention_bias", False)),
        "block_bias": False,
        "patch_norm": True,
        "projector": "gated",
        "projector_mlp": number(config, "intermediate_size", 13696),
    }


def _config(model_type: str, model: VitModel) -> Config:
    """Return the vision part of a configuration; `out_hidden_size` is the width of language."""
    return {
        "model_type": model_type,
        **_SIZES.config(model),
        "image_size": min(model.image or (1, 1)) * model.patch,
        "intermediate_size": model.projector_mlp_width,
        "attention_bias": model.qkv_bias,
        "rms_norm_eps": model.norm_eps,
        "hidden_act": "silu",
        "rope_parameters": {**ROPES},
    }


def vision_family(model_type: str, architecture: str) -> Family[VitModel]:
    """Return the family of a tower."""
    return Family(
        model_type=model_type,
        kind="vit",
        not_computed=vision_not_computed(_ACTIVATIONS, "silu"),
        keys=_keys,
        place=_NAMES,
        is_ignored=vision_is_ignored,
        config=partial(_config, model_type),
        architecture=architecture,
        row_width="out_hidden_size",
        video=lambda _: videos_timed("text_after"),
    )
