"""A tiny native AIMv2 of `transformers`: images of any size, with sines and cosines of places."""

from functools import partial
from typing import Any

import numpy as np
import torch
from tests.support import aimv2, radio
from torch import Tensor

KEYS: dict[str, Any] = {**aimv2.KEYS, "positions": "sincos_mae", "image": None}
GATED, CONSTANT, widen = aimv2.GATED, aimv2.CONSTANT, aimv2.widen
made = partial(radio.made, keys=KEYS)
tiny = partial(aimv2.tiny, is_native=True)


def features_of(model: Any, image: np.ndarray) -> Tensor:
    """Return the features [patches, D] of one image."""
    found: Tensor = model(torch.from_numpy(image).to(model.dtype)[None]).last_hidden_state[0]
    return found
