"""A tiny AIMv2 of `transformers` with random weights, specs that start from it, its features."""

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.support import radio
from tests.support.random_models import of_norm, shaken, theirs
from torch import Tensor

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "patch_size": radio.PATCH, "image_size": radio.PATCH * radio.SIDE, "rms_norm_eps": 1e-3,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "layers": 2, "hidden": 32, "heads": 4, "mlp": 48, "patch": radio.PATCH, "channels": 3,
    "positions": "learned", "image": [radio.SIDE, radio.SIDE], "activation": "swiglu",
    "norm": "rms", "patch_norm": True, "qkv_bias": False, "block_bias": False, "norm_eps": 1e-3,
}  # fmt: skip
# With all biases; the MLPs have gates in any case.
GATED = ({"qkv_bias": True, "mlp_bias": True}, {"qkv_bias": True, "block_bias": True})
# The pooling of an image to one row.
CONSTANT = r"^head\."
made = partial(radio.made, keys=KEYS)


def tiny(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """Return a model in which no weight is a constant."""
    model = theirs().Aimv2VisionModel(theirs().Aimv2VisionConfig(**SIZES | more))
    return shaken(model, dtype, of_norm)


def features_of(model: Any, image: np.ndarray) -> Tensor:
    """Return the features [patches, D] of one image; its table is resized as that of a CLIP.

    `transformers` takes images of one size alone.
    """
    pixels = torch.from_numpy(image).to(model.dtype)[None]
    inner, side = model.embeddings, radio.SIDE
    sides = [length // radio.PATCH for length in pixels.shape[-2:]]
    if sides == [side, side]:
        alone: Tensor = model(pixels).last_hidden_state[0]
        return alone
    table = inner.position_embedding.weight.mT.reshape(1, -1, side, side)
    wide = F.interpolate(table, sides, mode="bicubic", align_corners=False).flatten(2).mT
    patches = inner.patch_embed(pixels).flatten(2).mT
    hidden = model.encoder(inputs_embeds=inner.rms_norm(patches) + wide).last_hidden_state
    found: Tensor = model.rms_norm(hidden)[0]
    return found


def widen(model: Any) -> None:
    """Normalise in the type of the model: `transformers` does in fp32, whatever that is."""
    for norm in model.modules():
        if type(norm).__name__ == "Aimv2RMSNorm":
            norm.forward = partial(_normalised, norm)


def _normalised(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)
