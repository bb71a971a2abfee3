"""Qwen2-VL and Qwen2.5-VL: vision transformers for images of any size, and a Qwen2 with M-RoPE.

Sources: arXiv:2409.12191, arXiv:2502.13923; `transformers` 5.23, models/qwen2_vl and
models/qwen2_5_vl.
"""

from collections.abc import Mapping
from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.families.qwen import WINDOWS
from mimo_launch.hugging_face.family import Family, Video
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.settings import Computed, Named, Settings
from mimo_launch.hugging_face.tensors import MLP
from mimo_launch.hugging_face.towers import (
    ACTIVATIONS,
    ALIASES,
    GATED,
    MERGER,
    MERGER_REST,
    NORM_EPS,
    ROPES,
    axial_refusals,
    merger_tensors,
)
from mimo_launch.hugging_face.wholes import VisionAndText


def text_family(model_type: str, architecture: str) -> Family:
    """Return the family of a Qwen2 with positions on three axes."""
    return Family(
        model_type=model_type,
        kind="decoder",
        architecture=architecture,
        settings=decoders.decoder(
            # Its attention ignores `head_dim`.
            {**decoders.sizes(kv_heads=8), "head_dim": decoders.FILLED},
            WINDOWS,
            qkv_bias=True,
            **rotary.mrope((16, 24, 24), interleaved=False),
        ),
        tensors=decoders.TENSORS,
        refused=decoders.not_computed(WINDOWS),
        defaults={
            "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
            "max_window_layers": 80,
        },
        prepared=rotary.plain_rope,
    )  # fmt: skip


_PLACES: Mapping[str, Any] = {
    "heads": ("num_heads", 16),
    "patch": ("patch_size", 14),
    "shuffle": ("spatial_merge_size", 2),
    "temporal_patch": ("temporal_patch_size", 2),
}
_REST = {
    **MERGER_REST, **MERGER, "positions": "rope2d", "patch_bias": False, "norm_eps": NORM_EPS,
}  # fmt: skip
_ENDS = {
    "norm": "merger.ln_q",
    "projector.up": "merger.mlp.0",
    "projector.down": "merger.mlp.2",
}
_BLOCK = {"attention_norm": "norm1", "mlp_norm": "norm2", "attention.o": "attn.proj"}
_QWEN2_VL_VISION = Family(
    model_type="qwen2_vl_vision",
    kind="vit",
    architecture="Qwen2VisionTransformerPretrainedModel",
    settings=Settings(
        {
            "layers": ("depth", 32),
            "hidden": ("embed_dim", 1280),
            **_PLACES,
            "channels": Computed(
                lambda x: number(x, "in_channels", x.get("in_chans") or 3),
                lambda model: {"in_channels": model.channels},
                "`in_channels`, or `in_chans`; 3",
            ),
            "mlp": Computed(
                lambda x: int(number(x, "embed_dim", 1280) * number(x, "mlp_ratio", 4)),
                lambda model: {"mlp_ratio": model.mlp_width // model.hidden},
                "`embed_dim` x `mlp_ratio`; 4",
            ),
            "activation": Named("hidden_act", ACTIVATIONS, "quick_gelu"),
        },
        {"rope_parameters": ROPES},
        {**_REST, "norm": "layer"},
    ),
    tensors=merger_tensors(_ENDS, {**_BLOCK, "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}),
    refused=axial_refusals(ACTIVATIONS, "quick_gelu"),
    random=(),
    aliases=ALIASES,
    row_width="hidden_size",
    video=Video("patches"),
)
QWEN2_VL = VisionAndText(
    model_type="qwen2_vl",
    architecture="Qwen2VLForConditionalGeneration",
    published=("Qwen/Qwen2-VL-7B-Instruct",),
    vision=_QWEN2_VL_VISION,
    text=text_family("qwen2_vl_text", "Qwen2VLTextModel"),
    either_ties=True,
    notes="The merger is the projector: with `frozen: except_projector` its maps train, and the "
    "norm before it, called `norm`, does not. An image counts as a video of two equal frames, so "
    "the embedding keeps its weights over time. Two adjacent images count as two; `transformers` "
    "expects text between them.",
)
FULL = (7, 15, 23, 31)


def _windows(config: Config) -> dict[str, Any] | None:
    layers = int(number(config, "depth", 32))
    pixels = number(config, "window_size", 112)
    row, patch = number(config, "spatial_merge_size", 2), number(config, "patch_size", 14)
    full = tuple(i for i in range(layers) if i in config.get("fullatt_block_indexes", FULL))
    return None if len(full) == layers else {"side": int(pixels // row // patch), "full": full}


def _windows_as_written(model: Any) -> Config:
    windows = model.windows
    side, full = (1, range(model.layers)) if windows is None else (windows.side, windows.full)
    return {
        "window_size": side * model.shuffle * model.patch,
        "fullatt_block_indexes": list(full),
    }


_SECONDS = Video("seconds", ("tokens_per_second", 4))
QWEN2_5_VL_VISION = Family(
    model_type="qwen2_5_vl_vision",
    kind="vit",
    architecture="Qwen2_5_VisionTransformerPretrainedModel",
    settings=Settings(
        {
            "layers": ("depth", 32),
            "hidden": ("hidden_size", 3584),
            **_PLACES,
            "channels": ("in_channels", 3),
            "mlp": ("intermediate_size", 3420),
            "windows": Computed(
                _windows, _windows_as_written,
                "`window_size` pixels; `fullatt_block_indexes`: none if these are all layers; "
                f"112, {list(FULL)}",
            ),
        },
        {"hidden_act": "silu", "rope_parameters": ROPES},
        {**_REST, "norm": "rms", "activation": "swiglu"},
    ),
    tensors=merger_tensors(_ENDS, {**_BLOCK, **{f"mlp.{x}": f"mlp.{x}_proj" for x in MLP}}),
    refused=axial_refusals(GATED, "silu"),
    random=(),
    aliases=ALIASES,
    row_width="out_hidden_size",
    video=_SECONDS,
)  # fmt: skip
QWEN2_5_VL = VisionAndText(
    model_type="qwen2_5_vl",
    architecture="Qwen2_5_VLForConditionalGeneration",
    published=("Qwen/Qwen2.5-VL-7B-Instruct",),
    vision=QWEN2_5_VL_VISION,
    text=text_family("qwen2_5_vl_text", "Qwen2_5_VLTextModel"),
    either_ties=True,
    notes="Windows are squares of rows, counted from the upper left corner of each image; those at "
    "its right and lower edge end with it. Any layout may cut a window anywhere.",
)
