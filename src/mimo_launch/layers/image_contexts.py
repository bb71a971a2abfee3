"""Attention contexts for lists of images, whole or cut into windows, made once per microbatch.

Decides: which tokens of a list attend to which; places of images in the list and of extra tokens;
the windows of an image: squares of rows, counted from its upper left corner; that tokens keep the
order of images between layers, and are grouped by window only inside attention, so that rows,
bridges and the cuts of tp and cp do not depend on windows.
Relies on: the contiguous cut of `layout.row_owners`, `rotary_angles`.
Leaves: the choice of layers that attend in windows to the encoder, and attention to `attention`.

Legend: N tokens of this rank, M tokens of all cp ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.layers.dropout import Draws
from mimo_launch.layers.rotary_angles import ROPE2D_THETA, angles, cos_and_sin
from mimo_launch.layers.sequence_contexts import SequenceContext
from mimo_launch.spec.spec import RopeScaling
from mimo_launch.spec.vit import RopeFrequencies

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenOrder:
    """A different order of tokens inside attention.

    `own` are the places in this rank's list of its tokens, in that order; `keys` are the places in
    the list of all cp ranks of all tokens that they attend to; `back` undoes `own`.
    """

    own: Tensor
    keys: Tensor
    back: Tensor


@dataclass(frozen=True, slots=True)
class ImageContext:
    """A list of images; each token attends to its own image, or to a part of it.

    If the list is only whole images of one length, `same` is their number and length. Otherwise,
    for each image with a token on this rank: `queries` [images, most tokens held] are the places of
    those tokens in this rank's list, `keys` [images, longest] the places of all tokens of the image
    in the list of all cp ranks; `valid` [images, 1 or most tokens held, longest] says which keys a
    query sees. `tokens` are the places of this rank's tokens in the flattened queries; padding
    tokens come after them. For kernels that take lists: `own_lengths` and `key_lengths` of those
    images, with keys from `first_key` on. `cos` and `sin` [N, K] rotate this rank's N tokens in
    models with rotary positions. With an `order` (of windows, or of images with tokens in two
    lists), all of these but the angles refer to lists in that order. If attention is causal inside
    images, `numbers` [N] number each token in its image. From `draws` layers draw what they drop.
    `distances` [P, h] are numbers of P distances, of each head of this rank, for every layer.
    """

    same: tuple[int, int] | None
    queries: Tensor
    keys: Tensor
    valid: Tensor
    tokens: Tensor
    is_full: bool
    own_lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]
    first_key: int
    cos: Tensor | None = None
    sin: Tensor | None = None
    order: TokenOrder | None = None
    numbers: Tensor | None = None
    draws: Draws | None = None
    distances: Tensor | None = None

    @property
    def has_gradients(self) -> bool:
        """Whether tensors in it have gradients, which a table waits for."""
        return self.distances is not None

    @property
    def is_causal(self) -> bool:
        """Whether a token sees only earlier tokens of its image."""
        return self.numbers is not None


# A layer that mixes tokens gets one of these with its input.
AttentionContext = SequenceContext | ImageContext


def image_context(
    lengths: list[int], held: range, device: torch.device, *, alone: bool
) -> ImageContext:
    """Return the context of images with the given numbers of tokens.

    `held` are the tokens of this rank in the list of all, which may include padding. `alone`: the
    module has no other cp rank. A rank that holds all images, while other ranks hold only padding,
    still joins their collectives.
    """
    ends = np.cumsum([0, *lengths], dtype=np.int64)
    begin, end = ends[:-1], ends[1:]
    mine = np.maximum(begin, held.start) < np.minimum(end, held.stop)
    begin, end = begin[mine], end[mine]
    lengths_here = set((end - begin).tolist())
    same = None
    if alone and held == range(int(ends[-1])) and len(lengths_here) == 1:
        same = len(begin), int(end[0])
    own = np.maximum(begin, held.start) - held.start, np.minimum(end, held.stop) - held.start
    return listed_context(own, (begin, end), device, same=same)


def listed_context(
    own: tuple[Index, Index],
    keys: tuple[Index, Index],
    device: torch.device,
    *,
    same: tuple[int, int] | None,
    numbers: Index | None = None,
) -> ImageContext:
    """Return the context of images, given where their tokens begin and end in two lists.

    `own` are the begins and ends of this rank's tokens, `keys` of the tokens that they attend to.
    With `same` nothing else is needed. `numbers` are the numbers of this rank's tokens in their
    images, if attention is causal.
    """
    if same is not None:
        own, keys = ((begin[:0], end[:0]) for begin, end in (own, keys))
    # On the host: index tensors with sizes that depend on values would make the host wait for a
    # device.
    queries, is_own = _padded(*own)
    places, valid = _padded(*keys)
    key_lengths = tuple((keys[1] - keys[0]).tolist())
    seen = valid[:, None]
    if numbers is not None and same is None:
        last = np.where(is_own, numbers[queries], valid.shape[1])  # Padding sees all keys.
        seen = seen & (np.arange(valid.shape[1]) <= last[:, :, None])
    return ImageContext(
        same,
        to_device(queries, device),
        to_device(places, device),
        to_device(seen, device),
        to_device(is_own.flatten().nonzero()[0], device),
        is_full=bool(seen.all()),
        own_lengths=tuple((own[1] - own[0]).tolist()),
        key_lengths=key_lengths,
        first_key=int(keys[0][0]) if key_lengths else 0,
    )


def turned_by_place(
    images: ImageContext,
    places_N2: Tensor,
    head_size: int,
    dtype: torch.dtype,
    *,
    frequencies: RopeFrequencies = "shared",
    theta: float = ROPE2D_THETA,
) -> ImageContext:
    """Return the context with the angles of (y, x) of this rank's tokens (2-D RoPE).

    Half of the pairs of a head rotate with y and half with x, both at the frequencies of a head of
    half the width. Source: Qwen2-VL (arXiv:2409.12191), section 2.1. If they are `in_turn` the
    frequencies of the whole head belong to y and x in turn (Pixtral, arXiv:2410.07073, section 2);
    if `alternating`, every other pair rotates with x, the next with y (MoonViT, arXiv:2504.07491).
    """
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_size, 4, device=places_N2.device, dtype=wide) / head_size
    if frequencies == "in_turn":
        exponent = torch.stack([exponent, exponent + 2 / head_size])
    angle = places_N2.to(wide).unsqueeze(-1) * theta**-exponent
    angle = (angle.flip(1).mT if frequencies == "alternating" else angle).flatten(1)
    angle = torch.cat([angle, angle], dim=-1)
    return replace(images, cos=angle.cos(), sin=angle.sin())


def _padded(begin: Index, end: Index) -> tuple[Index, npt.NDArray[np.bool_]]:
    """Return the places begin .. end of each row, padded with 0, and which of them are valid."""
    longest = int((end - begin).max()) if len(begin) else 0
    places = begin[:, None] + np.arange(longest)
    valid = places < end[:, None]
    return np.where(valid, places, 0), valid


def two_list_context(
    lengths: list[int],
    extras: list[int],
    held_each: tuple[int, int],
    shards: range,
    device: torch.device,
    *,
    alone: bool,
    causal: bool = False,
) -> ImageContext:
    """Return the context of images with the given numbers of patches and of extra tokens.

    Patches are one list and extra tokens (a class token, or rows of another module) a second one.
    Every shard holds `held_each` of the two, padding included; this rank holds `shards`, all of
    them if it is `alone`. `causal`: a token sees earlier tokens of its image; extra tokens come
    first.
    """
    size = sum(held_each)
    first, held = shards.start * size, len(shards) * size
    patches, patch_valid = _places(lengths, held_each[0], size, 0)
    others, other_valid = _places(extras, held_each[1], size, held_each[0])
    # One row per image, with its extra tokens before its patches.
    places = np.concatenate([others, patches], axis=1)
    valid = np.concatenate([other_valid, patch_valid], axis=1)
    own = valid & (places >= first) & (places < first + held)
    here = own.any(axis=1)
    places, valid, own = places[here], valid[here], own[here]
    own_lengths, key_lengths = own.sum(axis=1), valid.sum(axis=1)
    mine = places[own] - first
    # Image after image, then padding.
    order = np.concatenate([mine, np.setdiff1d(np.arange(held), mine)])
    same = None
    if alone and len(mine) == held and len(set(key_lengths.tolist())) == 1:
        same = len(key_lengths), int(key_lengths[0])
    number = (np.cumsum(valid, axis=1) - 1)[own] if causal else None
    context = listed_context(
        in_turn(own_lengths), in_turn(key_lengths), device, same=same, numbers=number
    )
    turned = (order, places[valid], order.argsort(kind="stable"))
    context = replace(context, order=TokenOrder(*(to_device(each, device) for each in turned)))
    if number is None:
        return context
    of_tokens = np.zeros(held, dtype=np.int64)
    of_tokens[mine] = number
    return replace(context, numbers=to_device(of_tokens, device))


def turned_in_order(
    images: ImageContext,
    head_size: int,
    theta: float,
    dtype: torch.dtype,
    scaling: RopeScaling | None,
) -> ImageContext:
    """Return the context with the angles of each token's number in its image."""
    if images.numbers is None:
        raise ValueError("tokens that see each other have no numbers")
    cos, sin = cos_and_sin(angles(images.numbers, head_size, theta, dtype, scaling), scaling)
    return replace(images, cos=cos, sin=sin)


def in_turn(lengths: Index) -> tuple[Index, Index]:
    """Return the begins and ends of consecutive parts of these lengths."""
    ends = lengths.cumsum()
    return ends - lengths, ends


def _places(
    lengths: list[int], held: int, size: int, start: int
) -> tuple[Index, npt.NDArray[np.bool_]]:
    """Return the places of each image's tokens in one list, and which exist: [images, longest].

    Every shard has `size` tokens; its `held` tokens of this list begin at `start`.
    """
    sizes = np.array(lengths, dtype=np.int64)
    begin = np.cumsum(sizes) - sizes
    within = np.arange(max(lengths, default=0))
    shard, place = np.divmod(begin[:, None] + within, max(1, held))
    return shard * size + start + place, within < sizes[:, None]


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
    """Return the context of images with attention inside windows of `side` x `side` rows.

    Arguments as for `image_context`, with sizes of images in place of lengths.
    """
    number_M = window_numbers(sizes, side, patches_per_row)
    mine_N = number_M[held.start : held.stop]
    here, own_lengths = np.unique(mine_N, return_counts=True)
    # Ordered by window, and inside a window as in the image.
    order_M = number_M.argsort(kind="stable")
    keys = order_M[np.isin(number_M[order_M], here)]
    key_lengths = np.unique(number_M[keys], return_counts=True)[1]
    # Padding follows all images and stays there.
    own = np.concatenate([mine_N.argsort(kind="stable"), np.arange(len(mine_N), len(held))])
    same = None
    if alone and len(mine_N) == len(held) and len(set(own_lengths.tolist())) == 1:
        same = len(here), int(own_lengths[0])
    context = listed_context(in_turn(own_lengths), in_turn(key_lengths), device, same=same)
    places = (own, keys, own.argsort(kind="stable"))
    return replace(context, order=TokenOrder(*(to_device(each, device) for each in places)))
