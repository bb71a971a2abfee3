"""Sequences one after another in one list, as kernels without padding take them.

Decides: that their bounds come from lengths which the host knows, so that nobody waits for a GPU.
Relies on: `comm.transfer`.
Leaves: attention inside each sequence to the backends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from mimo_launch.comm.transfer import to_device

SMALLEST_BOUND = 64


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences one after another: int32 [sequences + 1] bounds, and a limit of their lengths."""

    bounds: Tensor
    longest: int


def packed(lengths: Sequence[int], device: torch.device) -> Packed:
    """Return sequences of the given lengths.

    The limit is a power of two, so that batches of different images share compiled kernels.
    """
    return _packed(tuple(lengths), device)


@lru_cache(maxsize=256)
def _packed(lengths: tuple[int, ...], device: torch.device) -> Packed:
    # Kept because every layer of a stage asks, and because data often repeats its lengths.
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    longest = max(SMALLEST_BOUND, 1 << (max(lengths) - 1).bit_length())
    return Packed(to_device(bounds.numpy(), device), longest)
