"""Recomputes activations in the backward that the forward did not keep.

Decides: how layers recompute.
Relies on: `torch.utils.checkpoint`.
Leaves: the choice of layers to `models` and to the layers themselves.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def recomputed(compute: Callable[..., Any], *args: Any) -> Any:
    """Return a layer's result for `args`; it keeps only `args` and recomputes in the backward.

    Call it inside the layer's forward, so that FSDP's hooks are outside and run once.
    """
    if torch.is_grad_enabled():
        return checkpoint(compute, *args, use_reentrant=False)
    return compute(*args)
