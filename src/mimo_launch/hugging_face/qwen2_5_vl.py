"""Qwen2.5-VL: a vision transformer with windows, RMSNorm and gated MLPs, and Qwen2-VL's decoder.

Decides: what the vision part of its configuration means, and the names of its tensors.
Relies on: `qwen_vl` for all else.
Leaves: positions in time, scaled only in this family, to `video_processor`.

Sources: arXiv:2502.13923; `transformers` 5.23, models/qwen2_5_vl.
"""

from typing import Any

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.qwen_vl import (
    QWEN2,
    ROPES,
    TOWER,
    QwenVl,
    as_written,
    text_family,
    videos_timed,
    vision_is_ignored,
    vision_names,
    vision_not_computed,
)
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.spec.spec import VitModel

MODEL_TYPE = "qwen2_5_vl"
FULL = (7, 15, 23, 31)
PER_SECOND = 4
_ACTIVATIONS = {"silu": "swiglu"}
_SIZES = Settings({
    "layers": ("depth", 32), "hidden": ("hidden_size", 3584), "heads": ("num_heads", 16),
    "patch": ("patch_size", 14), "channels": ("in_channels", 3),
    "mlp": ("intermediate_size", 3420), "shuffle": ("spatial_merge_size", 2),
    "temporal_patch": ("temporal_patch_size", 2),
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
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def _keys(config: Config) -> dict[str, Any]:
    sizes = _SIZES.keys(config)
    layers = sizes["layers"]
    side = int(number(config, "window_size", 112) // sizes["shuffle"] // sizes["patch"])
    full = tuple(i for i in range(int(layers)) if i in config.get("fullatt_block_indexes", FULL))
    windows = None if len(full) == layers else {"side": side, "full": full}
    return {**sizes, "positions": "rope2d", **TOWER, "windows": windows}


def _config(model: VitModel) -> Config:
    """Return the vision part of a configuration, without `out_hidden_size`."""
    windows = model.windows
    side, full = (1, range(model.layers)) if windows is None else (windows.side, windows.full)
    second = None if model.video is None else model.video.per_second
    return {
        **({} if second is None else {"tokens_per_second": as_written(second)}),
        "model_type": VISION.model_type,
        **_SIZES.config(model),
        "window_size": side * model.shuffle * model.patch,
        "fullatt_block_indexes": list(full),
        "hidden_act": "silu",
        "rope_parameters": {**ROPES},
    }


VISION = Family(
    model_type="qwen2_5_vl_vision",
    kind="vit",
    not_computed=vision_not_computed(_ACTIVATIONS, "silu"),
    random=(),
    keys=_keys,
    place=vision_names(_ENDS, _BLOCK),
    is_ignored=vision_is_ignored,
    config=_config,
    architecture="Qwen2_5_VisionTransformerPretrainedModel",
    row_width="out_hidden_size",
    video=lambda config: videos_timed(
        "seconds", float(number(config, "tokens_per_second", PER_SECOND))
    ),
)
WHOLE = QwenVl(
    model_type=MODEL_TYPE,
    architecture="Qwen2_5_VLForConditionalGeneration",
    vision=VISION,
    text=text_family("qwen2_5_vl_text", "Qwen2_5_VLTextModel", QWEN2),
)
