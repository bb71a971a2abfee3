"""The vision towers of AIMv2, with learned positions, or native ones with sines and cosines.

Sources: arXiv:2411.14402; `transformers` 5.24, models/aimv2.
"""

from typing import Any

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import one_of, only, refusals, where
from mimo_launch.hugging_face.settings import Computed, Settings
from mimo_launch.hugging_face.tensors import MLP, Beyond, Dropped, Tensors, in_layers, patches
from mimo_launch.hugging_face.towers import REST

IMAGE, PATCH = ("image_size", 224), ("patch_size", 14)
_QKV_BIAS, _MLP_BIAS = "qkv_bias", "mlp_bias"
# Images of any size, with positions that are computed.
_NATIVE, _SINES = "is_native", "sincos_mae"

# These and the next three are the same in the tower of an Ovis2.
SIZES: dict[str, Any] = {
    "layers": ("num_hidden_layers", 24),
    "hidden": ("hidden_size", 1024),
    "heads": ("num_attention_heads", 8),
    "mlp": ("intermediate_size", 2816),
    "patch": PATCH,
    "channels": ("num_channels", 3),
    "qkv_bias": (_QKV_BIAS, False),
    "block_bias": (_MLP_BIAS, False),
    "norm_eps": ("rms_norm_eps", 1e-5),
}
BIASES_ALIKE = where(
    _MLP_BIAS,
    f"other than `{_QKV_BIAS}`",
    lambda config: config.get(_MLP_BIAS, False) != config.get(_QKV_BIAS, False),
    False,
)


def grid(config: Config) -> tuple[int, int]:
    """Return the sides of the table of positions in patches. Raises: ConfigError."""
    side = int(number(config, *IMAGE) // max(1, number(config, *PATCH)))
    return side, side


def tensors(before: str, patch: str) -> dict[str, Any]:
    """Return the places of all tensors, with what comes `before` names, and the name of a map."""
    return {
        "patch.weight": patches(f"{before}embeddings.{patch}.weight"),
        "patch.bias": f"{before}embeddings.{patch}.bias",
        "patch_norm": f"{before}embeddings.rms_norm",
        "positions.weight": f"{before}embeddings.position_embedding.weight",
        "norm": f"{before}rms_norm",
        **in_layers(
            f"{before}encoder.layers.*.",
            {
                "attention_norm": "rms_norm1",
                "mlp_norm": "rms_norm2",
                **{f"attention.{x}": f"attention.{x}_proj" for x in "qkv"},
                "attention.o": "attention.out_proj",
                **{f"mlp.{x}": f"ffn.{x}_proj" for x in MLP},
            },
        ),
    }


AIMV2 = Family(
    model_type="aimv2_vision_model",
    kind="vit",
    architecture="Aimv2VisionModel",
    published=("apple/aimv2-large-patch14-224", "apple/aimv2-large-patch14-native"),
    settings=Settings(
        {
            **SIZES,
            "image": Computed(
                lambda config: None if config.get(_NATIVE, False) else grid(config),
                lambda model: {IMAGE[0]: model.image_side} if model.image else {},
                f"`{IMAGE[0]}` / `{PATCH[0]}`, rounded down, twice; 224 pixels; none with "
                f"`{_NATIVE}`",
            ),
            "positions": Computed(
                lambda config: _SINES if config.get(_NATIVE, False) else "learned",
                lambda model: {_NATIVE: model.positions == _SINES},
                f"`{_SINES}` with `{_NATIVE}`; `learned`",
            ),
        },
        {"hidden_act": "silu"},
        {**REST, "norm": "rms", "patch_norm": True, "activation": "swiglu"},
    ),
    tensors=Tensors(
        tensors("", "patch_embed"),
        (
            Beyond("encoder.layers."),
            Dropped("rms_norm.*", lambda model: not model.final_norm),
            # The pooling of an image to one row.
            Dropped("head.*"),
        ),
    ),
    refused=refusals(
        only("hidden_act", "silu"),
        one_of(_NATIVE, (True, False), False),
        BIASES_ALIKE,
    ),
    may_end_early=True,
    notes="A folder has no projector, so ours keeps its initial values. A module may take only the "
    "first layers, and `final_norm` is free. Without `is_native`, `transformers` takes images of "
    "`image_size` alone; here the table of positions is resized for other ones.",
)
