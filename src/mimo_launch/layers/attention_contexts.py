"""The metadata of tokens that attention needs, made once per microbatch.

Decides: which tokens attend to which, positions of this rank's tokens, places of images in a list
and of extra tokens beside them.
Relies on: the zigzag rule and the contiguous cut of `layout.row_owners`.
Leaves: the attention itself to `attention`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.layers.aux_loss import RoutingContext
from mimo_launch.spec.spec import RopeScaling

Index = npt.NDArray[np.int64]
# Base of the 2-D rotary embedding, the same in every published model that has one.
ROPE2D_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents packed into sequences, by `numbers` [sequences, positions].

    `lengths` are those of all documents, sequence after sequence, on the host.
    """

    numbers: Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SequenceContext:
    """Tokens are `batch` sequences of equal length; a token attends to itself and those before it.

    `cos` and `sin` [S, K] rotate the S tokens that this rank holds of each sequence; [B, S, K]
    where the sequences differ in positions; None where attention has no positions. `documents` are
    packed into sequences and do not attend to each other. A token attends to the last `reach`
    tokens, itself among them; None: to all. `routing` is for the balance of experts. `masks` are
    added to the scores of each chunk of a sequence that this rank holds, over all its positions,
    where some tokens attend to later ones: [B, 1, queries, S].
    """

    batch: int
    device: torch.device
    cos: Tensor | None
    sin: Tensor | None
    documents: Documents | None
    routing: RoutingContext | None = None
    reach: int | None = None
    masks: tuple[Tensor, ...] = ()

    @property
    def needs_mask(self) -> bool:
        """Whether a token does not attend to all those before it in its sequence."""
        return self.documents is not None or self.reach is not None

    def lengths(self, seq: int) -> tuple[int, ...]:
        """Return the lengths of all documents; without any, those of sequences of `seq` tokens."""
        return (seq,) * self.batch if self.documents is None else self.documents.lengths

    def lower_right(self, queries: int, keys: int) -> Tensor:
        """Return the mask of the last `queries` of the first `keys` positions, which end together.

        Shapes: [queries, keys], with documents [batch, 1, queries, keys].
        """
        place = torch.arange(keys - queries, keys, device=self.device)
        distance = place[:, None] - torch.arange(keys, device=self.device)
        causal = distance >= 0
        if self.reach is not None:
            causal &= distance < self.reach
        if self.documents is None:
            return causal
        numbers = self.documents.numbers
        mine, theirs = numbers[:, keys - queries : keys], numbers[:, :keys]
        return (causal & (mine[:, :, None] == theirs[:, None, :]))[:, None]


def with_images(
    sequences: SequenceContext, images_BS: Tensor, cp: int, cp_size: int, dtype: torch.dtype
) -> SequenceContext:
    """Return the context in which tokens with the same number of an image see each other.

    A negative number is that of text. Layers share the masks: attention makes no copies of them.
    """
    seq = images_BS.shape[1]
    everywhere = sequences.lower_right(seq, seq)
    same = (images_BS[:, :, None] == images_BS[:, None, :]) & (images_BS[:, None, :] >= 0)
    if sequences.reach is not None:
        place = torch.arange(seq, device=images_BS.device)
        same &= place[:, None] - place < sequences.reach
    allowed = everywhere | same[:, None]
    added = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    added.masked_fill_(~allowed, -math.inf)
    if cp_size == 1:
        return replace(sequences, masks=(added,))
    chunks = added.chunk(2 * cp_size, dim=2)
    held = chunks[cp], chunks[2 * cp_size - 1 - cp]
    return replace(sequences, masks=tuple(each.contiguous() for each in held))


def zigzag_positions(seq: int, cp: int, cp_size: int, device: torch.device) -> Tensor:
    """Return the positions [seq / cp_size] that cp rank `cp` holds of a sequence.

    Chunks cp and 2 * cp_size - 1 - cp of 2 * cp_size, which balances causal attention.
    """
    places = torch.arange(seq, device=device)
    if cp_size == 1:
        return places
    chunks = places.view(2 * cp_size, -1)
    return torch.cat([chunks[cp], chunks[2 * cp_size - 1 - cp]])


def in_order(x_NF: Tensor, batch: int, cp_size: int) -> Tensor:
    """Return zigzag shards as sequences in order, [B, S, ...].

    Shapes: [cp_size * B * S / cp_size, ...], cp ranks one after another, each [B, 2 chunks].
    """
    if cp_size == 1:
        return x_NF.view(batch, -1, *x_NF.shape[1:])
    shards = x_NF.view(cp_size, batch, 2, -1, *x_NF.shape[1:])
    # First chunks are 0 .. cp-1 in the order of the ranks, second chunks run backwards.
    chunks = torch.cat([shards[:, :, 0], shards[:, :, 1].flip(0)])
    return chunks.transpose(0, 1).flatten(1, 2)


def in_shards(x_BSF: Tensor, cp_size: int) -> Tensor:
    """Return sequences as zigzag shards, the reverse of `in_order`."""
    if cp_size == 1:
        return x_BSF.flatten(0, 1)
    batch, seq = x_BSF.shape[:2]
    chunks = x_BSF.reshape(batch, 2 * cp_size, seq // (2 * cp_size), *x_BSF.shape[2:]).transpose(
        0, 1
    )
    first, second = chunks.chunk(2)
    return torch.stack([first, second.flip(0)], dim=2).flatten(0, 3)


def sequence_context(
    batch: int,
    positions: Tensor,
    head_size: int,
    theta: float | None,
    dtype: torch.dtype,
    *,
    documents: Documents | None,
    axes: tuple[int, ...] | None = None,
    scaling: RopeScaling | None = None,
    routing: RoutingContext | None = None,
) -> SequenceContext:
    """Return the context of `batch` sequences of which this rank holds the given positions.

    Without a `theta` nothing is rotated.

    Shapes: positions [S], on all axes and in all sequences; or [axes, B, S], of which `axes` has
    the one that rotates each pair of a head. They may go on from one document to the next: only
    distances matter to a rotary embedding.
    """
    if theta is None:
        return SequenceContext(batch, positions.device, None, None, documents, routing)
    angle = _angles(positions, head_size, theta, dtype, scaling)
    if positions.dim() > 1:
        if axes is None:
            raise ValueError("positions on several axes need the axis of each pair of a head")
        axis_of = to_device(np.array(axes, dtype=np.int64), positions.device)
        angle = angle.gather(0, axis_of.expand(1, *angle.shape[1:])).squeeze(0)
    cos, sin = _turns(angle, scaling)
    return SequenceContext(batch, positions.device, cos, sin, documents, routing)


def _turns(angle: Tensor, scaling: RopeScaling | None) -> tuple[Tensor, Tensor]:
    """Return what queries and keys are multiplied by, from the angles of the pairs of a head."""
    angle = torch.cat([angle, angle], dim=-1)
    stretch = 1.0 if scaling is None else scaling.stretch
    return angle.cos() * stretch, angle.sin() * stretch


def _angles(
    positions: Tensor, head_size: int, theta: float, dtype: torch.dtype, scaling: RopeScaling | None
) -> Tensor:
    """Return the angle of each pair of a head at some positions, in at least fp32."""
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_size, 2, device=positions.device, dtype=wide) / head_size
    frequency = theta**-exponent
    if scaling is not None:
        frequency = scaled(frequency, scaling, theta)
    return positions.to(wide).unsqueeze(-1) * frequency


def scaled(frequency: Tensor, scaling: RopeScaling, theta: float) -> Tensor:
    """Return the frequencies of a model that was trained further on longer sequences.

    Sources: Llama 3.1 (arXiv:2407.21783, section 3.4.2), as its published code does it; linear:
    arXiv:2306.15595, section 3; YaRN: arXiv:2309.00071, section 3.2, by pairs as its code does it.
    """
    if scaling.rope_type == "linear":
        return frequency / scaling.factor
    if scaling.rope_type == "yarn":
        pair = torch.arange(len(frequency), device=frequency.device, dtype=frequency.dtype)
        first, last = _interpolated(len(frequency), scaling, theta)
        kept = 1 - ((pair - first) / (last - first)).clamp(0, 1)
        return frequency * (kept + (1 - kept) / scaling.factor)
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / scaling.factor)


def _interpolated(pairs: int, scaling: RopeScaling, theta: float) -> tuple[float, float]:
    """Return the pairs of a head between which YaRN interpolates, as fractional numbers."""

    def turning(times: float) -> float:
        """Return the pair that turns so often within the original length."""
        length = scaling.original_max_position_embeddings / (2 * math.pi * times)
        return pairs * math.log(length) / math.log(theta)

    first, last = turning(scaling.beta_fast), turning(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    # As published, so that nothing is divided by 0.
    return first, last if last != first else last + 0.001


@dataclass(frozen=True, slots=True)
class Order:
    """Another order of tokens inside attention.

    `own` are the places of this rank's tokens, in that order, in this rank's list; `keys` those of
    all tokens that they attend to in the list of all cp ranks; `back` undoes `own`.
    """

    own: Tensor
    keys: Tensor
    back: Tensor


@dataclass(frozen=True, slots=True)
class ImageContext:
    """Tokens are images one after another; a token attends to its own image, or to a part of it.

    If the list is whole images of one length and nothing else, `same` is their number and length.
    Otherwise, for each image of which this rank holds a token: `queries` [images, most tokens held]
    are the places of those tokens in this rank's list, `keys` [images, longest] those of all its
    tokens in the list of all cp ranks; `valid` [images, 1 or most tokens held, longest] says which
    of them a query sees. `tokens` are the places of this rank's tokens in the flattened queries;
    padding tokens come after them. For kernels that take lists: `own_lengths` and `key_lengths` of
    those images, whose keys begin at `first_key`. `cos` and `sin` [N, K] rotate this rank's N
    tokens in models with rotary positions. With an `order` (of windows, or of images with tokens in
    two lists) the lists of all of these but the angles are in that order. Where a token sees only
    those of its image before it, `numbers` [N] count them.
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
    order: Order | None = None
    numbers: Tensor | None = None

    @property
    def is_causal(self) -> bool:
        """Whether a token sees only those of its image before it."""
        return self.numbers is not None


# A layer that mixes tokens gets one of these with them.
AttentionContext = SequenceContext | ImageContext


def image_context(
    lengths: list[int], held: range, device: torch.device, *, alone: bool
) -> ImageContext:
    """Return the context of images with the given numbers of tokens.

    `held` are the tokens of this rank in the list of all, which may include padding. `alone`: the
    module has no other cp rank. A rank that holds all images, beside ranks that hold padding only,
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
    """Return the context of images by the begins and ends of their tokens in two lists.

    `own` are those of this rank's tokens, `keys` those of the tokens that they attend to. With
    `same` nothing else is needed. `numbers` are those of this rank's tokens in their image, if they
    see only those before them.
    """
    if same is not None:
        own, keys = ((begin[:0], end[:0]) for begin, end in (own, keys))
    # On the host: index tensors whose size depends on values would make it wait for a device.
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
    images: ImageContext, places_N2: Tensor, head_size: int, dtype: torch.dtype
) -> ImageContext:
    """Return the context with the angles of (y, x) of this rank's tokens (2-D RoPE).

    Half of the pairs of a head rotate with y and half with x, both at the frequencies of a head of
    half the width. Source: Qwen2-VL (arXiv:2409.12191), section 2.1.
    """
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_size, 4, device=places_N2.device, dtype=wide) / head_size
    angle = (places_N2.to(wide).unsqueeze(-1) * ROPE2D_THETA**-exponent).flatten(1)
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
    them if it is `alone`. `causal`: a token sees those of its image before it, extra tokens first.
    """
    size = sum(held_each)
    first, held = shards.start * size, len(shards) * size
    patches, patch_valid = _places(lengths, held_each[0], size, 0)
    others, other_valid = _places(extras, held_each[1], size, held_each[0])
    # An image a row, its extra tokens before its patches.
    places = np.concatenate([others, patches], axis=1)
    valid = np.concatenate([other_valid, patch_valid], axis=1)
    own = valid & (places >= first) & (places < first + held)
    here = own.any(axis=1)
    places, valid, own = places[here], valid[here], own[here]
    own_lengths, key_lengths = own.sum(axis=1), valid.sum(axis=1)
    mine = places[own] - first
    # Image after image, and padding behind them.
    order = np.concatenate([mine, np.setdiff1d(np.arange(held), mine)])
    same = None
    if alone and len(mine) == held and len(set(key_lengths.tolist())) == 1:
        same = len(key_lengths), int(key_lengths[0])
    number = (np.cumsum(valid, axis=1) - 1)[own] if causal else None
    context = listed_context(
        in_turn(own_lengths), in_turn(key_lengths), device, same=same, numbers=number
    )
    turned = (order, places[valid], order.argsort(kind="stable"))
    context = replace(context, order=Order(*(to_device(each, device) for each in turned)))
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
    cos, sin = _turns(_angles(images.numbers, head_size, theta, dtype, scaling), scaling)
    return replace(images, cos=cos, sin=sin)


def in_turn(lengths: Index) -> tuple[Index, Index]:
    """Return begins and ends of parts of these lengths, one after another."""
    ends = lengths.cumsum()
    return ends - lengths, ends


def _places(
    lengths: list[int], held: int, size: int, start: int
) -> tuple[Index, npt.NDArray[np.bool_]]:
    """Return the places of each image's tokens of one list, and which exist: [images, longest].

    Every shard has `size` tokens; `held` of this list begin at `start`.
    """
    sizes = np.array(lengths, dtype=np.int64)
    begin = np.cumsum(sizes) - sizes
    within = np.arange(max(lengths, default=0))
    shard, place = np.divmod(begin[:, None] + within, max(1, held))
    return shard * size + start + place, within < sizes[:, None]
