"""Computes again in the backward what the forward did not keep.

Decides: how, for every layer that does so.
Relies on: `torch.utils.checkpoint`.
Leaves: which layers do to `models` and to the layers themselves.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def recomputed(compute: Callable[..., Any], *args: Any) -> Any:
    """Return what a layer computes of `args`; its backward keeps only them and computes it again.

    To be called inside the layer's own forward, so that FSDP's hooks are outside and run once.
    """
    if torch.is_grad_enabled():
        return checkpoint(compute, *args, use_reentrant=False)
    return compute(*args)
