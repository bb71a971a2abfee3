"""Sequences one after another in one list, as kernels without padding take them.

Decides: that their bounds come from lengths which the host knows, so that nobody waits for a GPU.
Relies on: `comm.to_device`; `attention_contexts` for the images of a rank.
Leaves: attention inside each sequence to the backends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from mimo_launch.comm.to_device import to_device
from mimo_launch.layers.attention_contexts import ImageContext

# How far a query sees, in tokens behind and ahead of it; -1 is without limit.
CAUSAL, WHOLE = (-1, 0), (-1, -1)
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


def packed_images(
    q_NhK: Tensor, k_MgK: Tensor, v_MgK: Tensor, images: ImageContext
) -> tuple[Tensor, Tensor, Tensor, Packed, Packed]:
    """Return what attends inside images, without padding: queries, keys, values, and both lists.

    Queries are this rank's, keys and values those of all cp ranks; there is an image here.
    """
    own, last_key = sum(images.own_lengths), images.first_key + sum(images.key_lengths)
    k, v = (x[images.first_key : last_key] for x in (k_MgK, v_MgK))
    queries, keys = (packed(x, q_NhK.device) for x in (images.own_lengths, images.key_lengths))
    return q_NhK[:own], k, v, queries, keys


@lru_cache(maxsize=256)
def _packed(lengths: tuple[int, ...], device: torch.device) -> Packed:
    # Kept because every layer of a stage asks, and because data often repeats its lengths.
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    longest = max(SMALLEST_BOUND, 1 << (max(lengths) - 1).bit_length())
    return Packed(to_device(bounds.numpy(), device), longest)
