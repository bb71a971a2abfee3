"""The context of attention where each image has a class token beside its patches.

Decides: where class tokens stand. A shard (a cp rank or, under sequence parallelism, a tp rank of
one) holds its patches, then its part of the class tokens of all images of the replica.
Relies on: `attention_contexts.ImageContext`, whose index tensors name tokens wherever they stand.
Leaves: how many of both a shard holds to `layout.row_owners`.
"""

import numpy as np
import torch

from mimo_launch.comm.to_device import to_device
from mimo_launch.layers.attention_contexts import ImageContext, Index


def class_token_context(
    lengths: list[int], patches: int, class_tokens: int, shards: range, device: torch.device
) -> ImageContext:
    """Return the context of images with the given numbers of patches and a class token each.

    Every shard holds so many `patches` and `class_tokens`, padding included; this rank `shards`.
    """
    size = patches + class_tokens
    held = range(shards.start * size, shards.stop * size)
    places, valid = _places(lengths, patches, class_tokens)
    own = valid & (places >= held.start) & (places < held.stop)
    here = own.any(axis=1)
    places, valid, own = places[here], valid[here], own[here]
    # The tokens of each image that are here, in front of its row.
    order = np.argsort(~own, axis=1, kind="stable")[:, : own.sum(axis=1).max(initial=0)]
    own = np.take_along_axis(own, order, axis=1)
    queries = np.where(own, np.take_along_axis(places, order, axis=1) - held.start, 0)
    # Padding, which may stand before other tokens, reads some place: nothing reads padding.
    tokens = np.zeros(len(held) if here.any() else 0, dtype=np.int64)
    tokens[queries[own]] = np.flatnonzero(own)
    return ImageContext(
        same=None,
        queries=to_device(queries, device),
        keys=to_device(np.where(valid, places, 0), device),
        valid=to_device(valid, device),
        tokens=to_device(tokens, device),
        is_full=bool(valid.all()),
        own_lengths=(),
        key_lengths=(),
        first_key=0,
    )


def _places(lengths: list[int], patches: int, class_tokens: int) -> tuple[Index, np.ndarray]:
    """Return where the tokens of each image stand in the list of all shards, and which exist.

    Shapes: [images, 1 + patches of the largest], the class token first.
    """
    size = patches + class_tokens
    numbers, sizes = np.arange(len(lengths)), np.array(lengths, dtype=np.int64)
    begin = np.cumsum(sizes) - sizes
    within = np.arange(max(lengths, default=0))
    shard, place = np.divmod(begin[:, None] + within, max(1, patches))
    of_class = numbers // max(1, class_tokens) * size + patches + numbers % max(1, class_tokens)
    places = np.concatenate([of_class[:, None], shard * size + place], axis=1)
    valid = np.concatenate([np.ones((len(lengths), 1), np.bool_), within < sizes[:, None]], axis=1)
    return places, valid
