"""Qwen3-VL: a vision transformer that sends the rows of several layers, and a Qwen3 with M-RoPE.

Decides: what both parts of its configuration mean, and the names of the tower's tensors.
Relies on: `qwen_vl` for all else.
Leaves: videos, whose times stand in the text, to `video_processor`.

Source: `transformers` 5.23, models/qwen3_vl.
"""

from collections.abc import Iterator
from functools import partial
from math import isqrt
from typing import Any

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.hugging_face.qwen_vl import (
    NORM_EPS,
    QWEN3,
    THETA,
    QwenVl,
    text_family,
    videos_timed,
    vision_is_ignored,
    vision_not_computed,
    vision_place,
)
from mimo_launch.hugging_face.refusals import Refusal, refusals
from mimo_launch.hugging_face.vit import ACTIVATIONS, PLAIN, PLAIN_PROJECTOR
from mimo_launch.spec.spec import VitModel

MODEL_TYPE = "qwen3_vl"
DEEPSTACK = (8, 16, 24)
TABLE = 2304
_ACTIVATION = "gelu_pytorch_tanh"
_ENDS = {
    "patch": "patch_embed.proj",
    "positions": "pos_embed",
    "norm": "merger.norm",
    "projector.up": "merger.linear_fc1",
    "projector.down": "merger.linear_fc2",
}
_DEEP = {"norm": "norm", "mlp.up": "linear_fc1", "mlp.down": "linear_fc2"}
_BLOCK = {
    "attention_norm": "norm1",
    "mlp_norm": "norm2",
    "attention.o": "attn.proj",
    "mlp.up": "mlp.linear_fc1",
    "mlp.down": "mlp.linear_fc2",
}


def _table(config: Config) -> Iterator[str]:
    places = int(number(config, "num_position_embeddings", TABLE))
    if isqrt(places) ** 2 != places:
        yield f"num_position_embeddings: {places}"


def _deep_layers(deepstack: tuple[int, ...], config: Config) -> Iterator[str]:
    layers = list(config.get("deepstack_visual_indexes", deepstack))
    if layers != [i for i in range(int(number(config, "depth", 27))) if i in layers]:
        yield f"deepstack_visual_indexes: {short(layers)}"


def _keys(deepstack: tuple[int, ...], config: Config) -> dict[str, Any]:
    side = isqrt(int(number(config, "num_position_embeddings", TABLE)))
    return {
        "layers": number(config, "depth", 27),
        "hidden": number(config, "hidden_size", 1152),
        "heads": number(config, "num_heads", 16),
        "patch": number(config, "patch_size", 16),
        "channels": number(config, "in_channels", 3),
        "mlp": number(config, "intermediate_size", 4304),
        "shuffle": number(config, "spatial_merge_size", 2),
        "temporal_patch": number(config, "temporal_patch_size", 2),
        "positions": "learned+rope2d",
        "image": (side, side),
        "interpolation": "bilinear",
        "windows": None,
        "deepstack": tuple(config.get("deepstack_visual_indexes", deepstack)),
        "class_token": False,
        "patch_bias": True,
        "norm": "layer",
        "pre_norm": False,
        "final_norm": True,
        "norm_eps": NORM_EPS,
        "activation": ACTIVATIONS[str(config.get("hidden_act", _ACTIVATION))],
        "projector": "merger",
        "projector_activation": "gelu",
        **PLAIN,
        **PLAIN_PROJECTOR,
    }


def _config(model_type: str, deepstack: tuple[int, ...], model: VitModel) -> Config:
    """Return the vision part of a configuration, without `out_hidden_size`."""
    ours = {name: theirs for theirs, name in ACTIVATIONS.items()}
    height, width = model.image or (1, 1)
    return {
        "model_type": model_type,
        "depth": model.layers,
        "hidden_size": model.hidden,
        "num_heads": model.heads,
        "patch_size": model.patch,
        "in_channels": model.channels,
        "intermediate_size": model.mlp_width,
        "spatial_merge_size": model.shuffle,
        "temporal_patch_size": model.temporal_patch,
        "num_position_embeddings": min(height, width) ** 2,
        **({"deepstack_visual_indexes": list(model.deepstack)} if deepstack else {}),
        # One that it has, where ours is another.
        "hidden_act": ours.get(model.activation, _ACTIVATION),
        "rope_parameters": {"rope_type": "axial", "rope_theta": THETA},
    }


def vision_family(
    model_type: str, architecture: str, *, deepstack: tuple[int, ...]
) -> Family[VitModel]:
    """Return the family of a tower; `deepstack` is the default of its configuration.

    If that is empty, the configuration has no such setting.
    """
    return Family(
        model_type=model_type,
        kind="vit",
        not_computed=vision_not_computed(ACTIVATIONS, _ACTIVATION)
        + refusals(
            Refusal("`num_position_embeddings` that is no square", _table),
            Refusal(
                "`deepstack_visual_indexes` that are no layers in order",
                partial(_deep_layers, deepstack),
            ),
        ),
        random=(),
        keys=partial(_keys, deepstack),
        place=vision_place(_ENDS, _BLOCK, _DEEP),
        is_ignored=vision_is_ignored,
        config=partial(_config, model_type, deepstack),
        architecture=architecture,
        row_width="out_hidden_size",
        video=lambda _: videos_timed("text"),
    )


VISION = vision_family("qwen3_vl_vision", "Qwen3VLVisionModel", deepstack=DEEPSTACK)
WHOLE = QwenVl(
    model_type=MODEL_TYPE,
    architecture="Qwen3VLForConditionalGeneration",
    vision=VISION,
    text=text_family("qwen3_vl_text", "Qwen3VLTextModel", QWEN3),
    nested=True,
)
