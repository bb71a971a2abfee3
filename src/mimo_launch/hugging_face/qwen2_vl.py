"""Qwen2-VL: a vision transformer for images of any size, and a Qwen2 decoder with M-RoPE.

Decides: what the vision part of its configuration means, and the names of its tensors.
Relies on: `qwen_vl` for all else.
Leaves: finding the folder's parts to `registry`.

Sources: arXiv:2409.12191; `transformers` 5.23, models/qwen2_vl.
"""

from typing import Any

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.qwen_vl import (
    NORM_EPS,
    QWEN2,
    THETA,
    QwenVl,
    text_family,
    videos_timed,
    vision_is_ignored,
    vision_not_computed,
    vision_place,
)
from mimo_launch.hugging_face.vit import ACTIVATIONS, PLAIN, PLAIN_PROJECTOR
from mimo_launch.spec.spec import VitModel

MODEL_TYPE = "qwen2_vl"
_ACTIVATION = "quick_gelu"
_ENDS = {
    "norm": "merger.ln_q",
    "projector.up": "merger.mlp.0",
    "projector.down": "merger.mlp.2",
}
_BLOCK = {
    "attention_norm": "norm1",
    "mlp_norm": "norm2",
    "attention.o": "attn.proj",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}


def _keys(config: Config) -> dict[str, Any]:
    width = number(config, "embed_dim", 1280)
    return {
        "layers": number(config, "depth", 32),
        "hidden": width,
        "heads": number(config, "num_heads", 16),
        "patch": number(config, "patch_size", 14),
        "channels": number(config, "in_channels", config.get("in_chans", 3)),
        "mlp": int(width * number(config, "mlp_ratio", 4)),
        "shuffle": number(config, "spatial_merge_size", 2),
        "temporal_patch": number(config, "temporal_patch_size", 2),
        "positions": "rope2d",
        "windows": None,
        "interpolation": "bicubic",
        "deepstack": (),
        "class_token": False,
        "patch_bias": False,
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


def _config(model: VitModel) -> Config:
    """Return the vision part of a configuration, without `hidden_size`: the width of language."""
    ours = {name: theirs for theirs, name in ACTIVATIONS.items()}
    return {
        "model_type": VISION.model_type,
        "depth": model.layers,
        "embed_dim": model.hidden,
        "num_heads": model.heads,
        "patch_size": model.patch,
        "in_channels": model.channels,
        "mlp_ratio": model.mlp_width // model.hidden,
        "spatial_merge_size": model.shuffle,
        "temporal_patch_size": model.temporal_patch,
        # One that it has, where ours is another.
        "hidden_act": ours.get(model.activation, _ACTIVATION),
        "rope_parameters": {"rope_type": "axial", "rope_theta": THETA},
    }


VISION = Family(
    model_type="qwen2_vl_vision",
    kind="vit",
    not_computed=vision_not_computed(ACTIVATIONS, _ACTIVATION),
    random=(),
    keys=_keys,
    place=vision_place(_ENDS, _BLOCK),
    is_ignored=vision_is_ignored,
    config=_config,
    architecture="Qwen2VisionTransformerPretrainedModel",
    row_width="hidden_size",
    video=lambda _: videos_timed("patches"),
)
WHOLE = QwenVl(
    model_type=MODEL_TYPE,
    architecture="Qwen2VLForConditionalGeneration",
    vision=VISION,
    text=text_family("qwen2_vl_text", "Qwen2VLTextModel", QWEN2),
)
