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
    QWEN2,
    ROPES,
    TOWER,
    QwenVl,
    text_family,
    videos_timed,
    vision_is_ignored,
    vision_names,
    vision_not_computed,
)
from mimo_launch.hugging_face.settings import ACTIVATIONS, Settings, theirs
from mimo_launch.spec.spec import VitModel

MODEL_TYPE = "qwen2_vl"
_ACTIVATION = "quick_gelu"
_SIZES = Settings({
    "layers": ("depth", 32), "hidden": ("embed_dim", 1280), "heads": ("num_heads", 16),
    "patch": ("patch_size", 14), "channels": ("in_channels", 3),
})  # fmt: skip
_GROUPS = Settings({
    "shuffle": ("spatial_merge_size", 2), "temporal_patch": ("temporal_patch_size", 2),
})  # fmt: skip
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
    sizes = _SIZES.keys(config, channels=config.get("in_chans"))
    return {
        **sizes,
        "mlp": int(sizes["hidden"] * number(config, "mlp_ratio", 4)),
        **_GROUPS.keys(config),
        "positions": "rope2d",
        **TOWER,
        "norm": "layer",
        "activation": ACTIVATIONS[str(config.get("hidden_act", _ACTIVATION))],
    }


def _config(model: VitModel) -> Config:
    """Return the vision part of a configuration, without `hidden_size`: the width of language."""
    return {
        "model_type": VISION.model_type,
        **_SIZES.config(model),
        "mlp_ratio": model.mlp_width // model.hidden,
        **_GROUPS.config(model),
        "hidden_act": theirs(model.activation, _ACTIVATION),
        "rope_parameters": {**ROPES},
    }


VISION = Family(
    model_type="qwen2_vl_vision",
    kind="vit",
    not_computed=vision_not_computed(ACTIVATIONS, _ACTIVATION),
    random=(),
    keys=_keys,
    place=vision_names(_ENDS, _BLOCK),
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
