"""A tiny DINOv2 of `transformers` with random weights, specs that start from it, its features."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.support import radio
from tests.support.random_models import of_norm, shaken, theirs
from torch import Tensor

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2,
    "patch_size": radio.PATCH, "image_size": radio.PATCH * radio.SIDE, "layer_norm_eps": 1e-3,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "layers": 2, "hidden": 32, "heads": 4, "mlp": 64, "patch": radio.PATCH, "channels": 3,
    "positions": "learned", "image": [radio.SIDE, radio.SIDE], "class_token": True,
    "layer_scale": 1.0, "norm_eps": 1e-3,
}  # fmt: skip
# Two thirds of the width, in steps of 8.
GATED = ({"use_swiglu_ffn": True}, {"activation": "swiglu", "mlp": 48})
# It stands for hidden patches in pretraining.
CONSTANT = r"mask_token"
made = partial(radio.made, keys=KEYS)


def tiny(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """Return a model in which no weight is a constant."""
    model = theirs().Dinov2Model(theirs().Dinov2Config(**SIZES | more))
    return shaken(model, dtype, lambda name: of_norm(name) or float("lambda" in name))


def features_of(model: Any, image: np.ndarray) -> Tensor:
    """Return the features [patches, D] of one image."""
    pixels = torch.from_numpy(image).to(model.dtype)
    found: Tensor = model(pixels[None]).last_hidden_state[0]
    return found[1:]


def widen(model: Any) -> None:
    """Resize the table in its own type: `transformers` does in fp32, whatever that is."""
    inner = model.embeddings
    inner.interpolate_pos_encoding = partial(resized, inner, F.interpolate)


def resized(
    inner: Any, resize: Callable[..., Tensor], _: Tensor, height: int, width: int
) -> Tensor:
    """Return the positions of the class token and of the patches of an image."""
    table, side = inner.position_embeddings, radio.SIDE
    of_patches = table[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
    sides = height // radio.PATCH, width // radio.PATCH
    wide = resize(of_patches, sides, mode="bicubic", align_corners=False)
    return torch.cat([table[:, :1], wide.flatten(2).mT], dim=1)
