"""Qwen3-VL: a vision transformer that sends the rows of several layers, and a Qwen3 with M-RoPE.

Decides: what both parts of its configuration mean, and the names of the tower's tensors.
Relies on: `qwen_vl` for all else.
Leaves: videos, with times in the text, to `video_processor`.

Source: `transformers` 5.23, models/qwen3_vl.
"""

from dataclasses import dataclass
from math import isqrt
from typing import Any

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.qwen_vl import (
    QWEN3,
    ROPES,
    TOWER,
    QwenVl,
    text_family,
    videos_timed,
    vision_is_ignored,
    vision_names,
    vision_not_computed,
)
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.settings import ACTIVATIONS, Settings, theirs
from mimo_launch.spec.spec import VitModel

MODEL_TYPE = "qwen3_vl"
DEEPSTACK = (8, 16, 24)
TABLE = 2304
_ACTIVATION = "gelu_pytorch_tanh"
_SIZES = Settings({
    "layers": ("depth", 27), "hidden": ("hidden_size", 1152), "heads": ("num_heads", 16),
    "patch": ("patch_size", 16), "channels": ("in_channels", 3),
    "mlp": ("intermediate_size", 4304), "shuffle": ("spatial_merge_size", 2),
    "temporal_patch": ("temporal_patch_size", 2),
})  # fmt: skip
_DEEP_LAYERS = "deepstack_visual_indexes"
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


def _table(config: Config) -> int:
    """Return the number of entries of the table of positions. Raises: ConfigError."""
    return int(number(config, "num_position_embeddings", TABLE))


@dataclass(frozen=True, slots=True)
class _Tower:
    """The settings of a tower; `deepstack` is the default of its configuration.

    If it is empty, the configuration has no such setting.
    """

    model_type: str
    deepstack: tuple[int, ...]

    def keys(self, config: Config) -> dict[str, Any]:
        """Return the vision part of a configuration as keys of `model`. Raises: ConfigError."""
        side = isqrt(_table(config))
        return {
            **_SIZES.keys(config),
            "positions": "learned+rope2d",
            "image": (side, side),
            **TOWER,
            "interpolation": "bilinear",
            "deepstack": tuple(config.get(_DEEP_LAYERS, self.deepstack)),
            "patch_bias": True,
            "norm": "layer",
            "activation": ACTIVATIONS[str(config.get("hidden_act", _ACTIVATION))],
        }

    def is_out_of_order(self, config: Config) -> bool:
        """Return whether the layers that send rows are not in order. Raises: ConfigError."""
        layers = list(config.get(_DEEP_LAYERS, self.deepstack))
        return layers != [i for i in range(int(number(config, "depth", 27))) if i in layers]

    def config(self, model: VitModel) -> Config:
        """Return the vision part of a configuration, without `out_hidden_size`."""
        return {
            "model_type": self.model_type,
            **_SIZES.config(model),
            "num_position_embeddings": min(model.image or (1, 1)) ** 2,
            **({_DEEP_LAYERS: list(model.deepstack)} if self.deepstack else {}),
            "hidden_act": theirs(model.activation, _ACTIVATION),
            "rope_parameters": {**ROPES},
        }


def vision_family(
    model_type: str, architecture: str, *, deepstack: tuple[int, ...]
) -> Family[VitModel]:
    """Return the family of a tower; `deepstack` is as in `_Tower`."""
    tower = _Tower(model_type, deepstack)
    return Family(
        model_type=model_type,
        kind="vit",
        not_computed=vision_not_computed(ACTIVATIONS, _ACTIVATION)
        + refusals(
            where(
                "num_position_embeddings",
                "that is no square",
                lambda config: isqrt(_table(config)) ** 2 != _table(config),
            ),
            where(_DEEP_LAYERS, "that are no layers in order", tower.is_out_of_order, deepstack),
        ),
        random=(),
        keys=tower.keys,
        place=vision_names(_ENDS, _BLOCK, _DEEP),
        is_ignored=vision_is_ignored,
        config=tower.config,
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
