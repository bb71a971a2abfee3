"""The tower of GLM-4.1V: a table of positions and rotation by place, a convolution, a gated merger.

Decides: what the vision part of its configuration means, and the names of its tensors.
Relies on: `qwen_vl` for patches and fused queries, keys and values.
Leaves: the text part to `glm4v` and `glm4v_moe`.

Source: `transformers` 5.23, models/glm4v; arXiv:2507.01006.
"""

from functools import partial
from typing import Any

from mimo_launch.hugging_face.family import Family, Place, layers_at
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.qwen_vl import (
    THETA,
    videos_timed,
    vision_is_ignored,
    vision_not_computed,
    vision_place,
)
from mimo_launch.hugging_face.vit import PLAIN, PLAIN_PROJECTOR
from mimo_launch.spec.spec import VitModel

_ACTIVATIONS = {"silu": "swiglu"}
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
_MERGER = layers_at(
    {
        "projector.convolution": "downsample",
        "projector.middle": "merger.proj",
        "projector.middle_norm": "merger.post_projection_norm",
        **{f"projector.mlp.{x}": f"merger.{x}_proj" for x in ("gate", "up", "down")},
    }
)
_tower_place = vision_place(_ENDS, _BLOCK)


def _keys(config: Config) -> dict[str, Any]:
    patch = number(config, "patch_size", 14)
    side = int(number(config, "image_size", 336) // patch)
    return {
        "layers": number(config, "depth", 24),
        "hidden": number(config, "hidden_size", 1536),
        "heads": number(config, "num_heads", 12),
        "patch": patch,
        "channels": number(config, "in_channels", 3),
        # That of the merger is `intermediate_size`.
        "mlp": number(config, "out_hidden_size", 4096),
        "shuffle": number(config, "spatial_merge_size", 2),
        "temporal_patch": number(config, "temporal_patch_size", 2),
        "positions": "learned+rope2d",
        "image": (side, side),
        "interpolation": "bicubic",
        "windows": None,
        "deepstack": (),
        "class_token": False,
        "patch_bias": True,
        "norm": "rms",
        "pre_norm": False,
        "final_norm": True,
        "norm_eps": number(config, "rms_norm_eps", 1e-5),
        "activation": "swiglu",
        **PLAIN,
        "qkv_bias": bool(config.get("attention_bias", False)),
        "block_bias": False,
        "patch_norm": True,
        **PLAIN_PROJECTOR,
        "projector": "gated",
        "projector_mlp": number(config, "intermediate_size", 13696),
        "projector_activation": "gelu",
    }


def _place(name: str, model: VitModel) -> Place:
    """Return the place of our tensor, by its name without the module. Raises: KeyError."""
    if name == "projector.convolution.weight":
        sides = (model.shuffle, model.shuffle)
        return Place("downsample.weight", shape=(model.mlp_width, model.hidden, *sides))
    return _MERGER[name] if name in _MERGER else _tower_place(name, model)


def _config(model_type: str, model: VitModel) -> Config:
    """Return the vision part of a configuration; `out_hidden_size` is the width of language."""
    height, width = model.image or (1, 1)
    return {
        "model_type": model_type,
        "depth": model.layers,
        "hidden_size": model.hidden,
        "num_heads": model.heads,
        "patch_size": model.patch,
        "in_channels": model.channels,
        "image_size": min(height, width) * model.patch,
        "intermediate_size": model.projector_mlp_width,
        "out_hidden_size": model.mlp_width,
        "spatial_merge_size": model.shuffle,
        "temporal_patch_size": model.temporal_patch,
        "attention_bias": model.qkv_bias,
        "rms_norm_eps": model.norm_eps,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "axial", "rope_theta": THETA},
    }


def vision_family(model_type: str, architecture: str) -> Family[VitModel]:
    """Return the family of a tower."""
    return Family(
        model_type=model_type,
        kind="vit",
        not_computed=vision_not_computed(_ACTIVATIONS, "silu"),
        keys=_keys,
        place=_place,
        is_ignored=vision_is_ignored,
        config=partial(_config, model_type),
        architecture=architecture,
        row_width="out_hidden_size",
        video=lambda _: videos_timed("text_after"),
    )
