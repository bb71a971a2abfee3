"""Which tokens attend to which where images are cut into windows.

Decides: the windows of an image: squares of rows, counted from its upper left corner; that tokens
keep the order of images between layers, and stand together by window only inside attention, so that
rows, bridges and the cuts of tp and cp know nothing of windows.
Relies on: `attention_contexts`, to which each window is one more image of a list.
Leaves: which layers attend in windows to the encoder.

Legend: N tokens of this rank, M tokens of all cp ranks.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from mimo_launch.comm.async_copies import to_device
from mimo_launch.layers.attention_contexts import (
    ImageContext,
    Index,
    Order,
    in_turn,
    listed_context,
)


def window_numbers(sizes: Sequence[tuple[int, int]], side: int, patches_per_row: int) -> Index:
    """Return the window of each token of a list of images, numbered through all images, [M].

    `sizes` are height and width of each image in rows.
    """
    found, first = [np.empty(0, dtype=np.int64)], 0
    for height, width in sizes:
        across = -(-width // side)
        y, x = np.indices((height, width)) // side
        found.append((first + y * across + x).flatten())
        first += -(-height // side) * across
    return np.concatenate(found).repeat(patches_per_row)


def window_context(
    sizes: Sequence[tuple[int, int]],
    side: int,
    patches_per_row: int,
    held: range,
    device: torch.device,
    *,
    alone: bool,
) -> ImageContext:
    """Return the context of images whose tokens attend inside windows of `side` x `side` rows.

    The arguments are those of `image_context`, with sizes of images in place of lengths.
    """
    number_M = window_numbers(sizes, side, patches_per_row)
    mine_N = number_M[held.start : held.stop]
    here, own_lengths = np.unique(mine_N, return_counts=True)
    # By window, and inside a window in the order of the image.
    order_M = number_M.argsort(kind="stable")
    keys = order_M[np.isin(number_M[order_M], here)]
    key_lengths = np.unique(number_M[keys], return_counts=True)[1]
    # Padding stands behind all images and stays there.
    own = np.concatenate([mine_N.argsort(kind="stable"), np.arange(len(mine_N), len(held))])
    same = None
    if alone and len(mine_N) == len(held) and len(set(own_lengths.tolist())) == 1:
        same = len(here), int(own_lengths[0])
    context = listed_context(in_turn(own_lengths), in_turn(key_lengths), device, same=same)
    places = (own, keys, own.argsort(kind="stable"))
    return replace(context, order=Order(*(to_device(each, device) for each in places)))
