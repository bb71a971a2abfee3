"""Settings that vision towers of several families have.

Decides: our names of activations; what a plain tower and a plain projector do not have.
Relies on: nothing.
Leaves: all else to the families.
"""

from typing import Any

from mimo_launch.hugging_face.folder import Config

# Our activations by their names in transformers.
ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
PLAIN: dict[str, Any] = {
    "qkv_bias": True, "block_bias": True, "qk_norm": False, "layer_scale": None,
    "rope_frequencies": "shared", "patch_norm": False, "registers": 0,
}  # fmt: skip
PLAIN_PROJECTOR: dict[str, Any] = {
    "projector_norm_eps": None, "projector_bias": True, "projector_mlp": None, "pooling": None,
    "tiles": None,
}  # fmt: skip
# A table of positions, and nothing besides.
LEARNED: dict[str, Any] = {
    "temporal_patch": 1, "positions": "learned", "windows": None, "interpolation": "bicubic",
    "deepstack": (),
}  # fmt: skip


def theirs(activation: str, otherwise: str = "gelu") -> str:
    """Return the name of our activation in transformers; one that it has, where ours is another."""
    names = (name for name, ours in ACTIVATIONS.items() if ours == activation)
    return next(names, otherwise)


def activation_of(config: Config, key: str = "hidden_act") -> str:
    """Return our activation of a setting; one that we do not compute is refused elsewhere."""
    return ACTIVATIONS.get(str(config.get(key, "gelu")), "gelu")
