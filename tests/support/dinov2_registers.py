"""A tiny DINOv2 with registers of `transformers`, specs that start from it, its features."""

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.support import dinov2, radio
from tests.support.random_models import of_norm, shaken, theirs
from torch import Tensor

REGISTERS = 3
KEYS: dict[str, Any] = {
    **dinov2.KEYS, "registers": REGISTERS, "interpolation": "bicubic_averaged",
}  # fmt: skip
GATED, CONSTANT = dinov2.GATED, dinov2.CONSTANT
made = partial(radio.made, keys=KEYS)


def tiny(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """Return a model in which no weight is a constant."""
    sizes = {**dinov2.SIZES, "num_register_tokens": REGISTERS, **more}
    model = theirs().Dinov2WithRegistersModel(theirs().Dinov2WithRegistersConfig(**sizes))
    return shaken(model, dtype, lambda name: of_norm(name) or float("lambda" in name))


def features_of(model: Any, image: np.ndarray) -> Tensor:
    """Return the features [patches, D] of one image."""
    pixels = torch.from_numpy(image).to(model.dtype)
    found: Tensor = model(pixels[None]).last_hidden_state[0]
    return found[1 + REGISTERS :]


def widen(model: Any) -> None:
    """Resize the table in its own type: `transformers` does in fp32, whatever that is."""
    resize = partial(F.interpolate, antialias=True)
    model.embeddings.interpolate_pos_encoding = partial(dinov2.resized, model.embeddings, resize)
