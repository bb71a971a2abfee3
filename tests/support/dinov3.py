"""A tiny DINOv3 of `transformers` with random weights, specs that start from it, its features."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from tests.support import radio
from tests.support.random_models import of_norm, shaken, theirs
from torch import Tensor

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "patch_size": radio.PATCH, "num_register_tokens": 3, "rope_theta": 20.0, "layer_norm_eps": 1e-3,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "kind": "dinov3", "layers": 2, "hidden": 32, "heads": 4, "mlp": 48, "patch": radio.PATCH,
    "channels": 3, "registers": 3, "rope_theta": 20.0, "norm_eps": 1e-3,
}  # fmt: skip
GATED = ({"use_gated_mlp": True, "hidden_act": "silu"}, {"activation": "swiglu"})
# It stands for hidden patches in pretraining.
CONSTANT = r"mask_token"
made = partial(radio.made, keys=KEYS)


def tiny(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """Return a model in which no weight is a constant."""
    model = theirs().DINOv3ViTModel(theirs().DINOv3ViTConfig(**SIZES | more))
    return shaken(model, dtype, lambda name: of_norm(name) or float("lambda" in name))


def features_of(model: Any, image: np.ndarray) -> Tensor:
    """Return the features [patches, D] of one image."""
    pixels = torch.from_numpy(image).to(model.dtype)
    found: Tensor = model(pixels[None]).last_hidden_state[0]
    return found[1 + model.config.num_register_tokens :]


def widen(model: Any) -> None:
    """Compute angles in float64: `transformers` does in fp32, whatever the type."""
    from transformers.models.dinov3_vit.modeling_dinov3_vit import get_patches_center_coordinates

    rope = model.rope_embeddings
    exponents = torch.arange(0, 1, 4 / rope.head_dim, dtype=torch.float64)

    def angles(pixels: Tensor) -> tuple[Tensor, Tensor]:
        sides = [side // model.config.patch_size for side in pixels.shape[-2:]]
        centres = get_patches_center_coordinates(*sides, torch.float64, pixels.device)
        angle = (2 * math.pi * centres[:, :, None] / rope.base**exponents).flatten(1).tile(2)
        return angle.cos(), angle.sin()

    rope.forward = angles
