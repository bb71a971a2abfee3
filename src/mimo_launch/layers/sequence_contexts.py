"""Attention contexts for sequences of tokens, made once per microbatch.

Decides: which tokens of a sequence attend to which; positions of this rank's tokens, in zigzag
order, and what they do to queries and keys: rotation, and factors on queries of later tokens.
Relies on: `rotary_angles` for the angles of positions.
Leaves: lists of images to `image_contexts`, and attention to `attention`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.kinds.layer import Rotary
from mimo_launch.kinds.saved_activations import Mask
from mimo_launch.layers.dropout import Draws
from mimo_launch.layers.rotary_angles import angles, cos_and_sin
from mimo_launch.layers.router import RoutingContext
from mimo_launch.spec.layers import QueryScaling, SlidingWindow


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents packed into sequences, by `numbers` [sequences, positions].

    `lengths` are the lengths of all documents, sequence after sequence, on the host.
    """

    numbers: Tensor
    lengths: tuple[int, ...]


class KeysValues:
    """Keys and values of whole sequences, [B, M, g, K] each, for layers after their own.

    No dataclass: FSDP2 looks into these for tensors that a layer returns, and allows no views.
    Their gradients come after that of the stream, which it waits for.
    """

    __slots__ = ("keys", "values")

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values


@dataclass(frozen=True, slots=True)
class SequenceContext:
    """`batch` sequences of equal length; a token attends to itself and to earlier tokens.

    `cos` and `sin` [S, K] rotate the S tokens that this rank holds of each sequence; [B, S, K] if
    the sequences differ in positions; None if attention has no positions. `documents` are packed
    into sequences and do not attend to each other. A token attends to the last `reach` tokens,
    itself included; None: to all. `routing` is for the balance of experts. If some tokens attend to
    later ones, `masks` are added to the scores, one for each chunk of a sequence that this rank
    holds, over all positions of the sequence: [B, 1, queries, S]. Queries are multiplied by
    `factors`, [S] or [B, S], if there are any. From `draws` layers draw what they drop. `held` are
    the keys and values of an earlier layer, for layers that attend to these; `vectors` [n, P] are
    the per-layer embeddings of a layer.
    """

    batch: int
    device: torch.device
    cos: Tensor | None
    sin: Tensor | None
    documents: Documents | None
    routing: RoutingContext | None = None
    reach: int | None = None
    masks: tuple[Tensor, ...] = ()
    factors: Tensor | None = None
    draws: Draws | None = None
    held: KeysValues | None = None
    vectors: Tensor | None = None

    @property
    def has_gradients(self) -> bool:
        """Whether tensors in it have gradients, which other layers or an embedding wait for."""
        return self.held is not None or self.vectors is not None

    @property
    def needs_mask(self) -> bool:
        """Whether a token does not attend to all earlier tokens of its sequence."""
        return self.documents is not None or self.reach is not None

    @property
    def mask(self) -> Mask:
        """The mask that all layers of a kind need; see `AttentionShape.mask`."""
        if self.masks:
            return "masked"
        return "documents" if self.needs_mask else "causal"

    def lengths(self, seq: int) -> tuple[int, ...]:
        """Return the lengths of all documents, or `seq` for each sequence without documents."""
        return (seq,) * self.batch if self.documents is None else self.documents.lengths

    def lower_right(self, queries: int, keys: int) -> Tensor:
        """Return the mask of the last `queries` positions among the first `keys` positions.

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


def in_window(
    sequences: SequenceContext, window: SlidingWindow | None, seq: int
) -> SequenceContext:
    """Return the context of layers with a window, for sequences of `seq` tokens."""
    if window is None or window.size >= seq:
        return sequences
    if not window.chunked:
        return replace(sequences, reach=window.size)
    # A chunk acts as a document, except that positions do not restart.
    documents, size = sequences.documents, window.size
    numbers = places(documents, seq, sequences.device) // size
    numbers = (
        numbers.expand(sequences.batch, seq)
        if documents is None
        else documents.numbers.long() * seq + numbers
    )
    lengths = sequences.lengths(seq)
    chunks = (min(size, each - first) for each in lengths for first in range(0, each, size))
    return replace(sequences, documents=Documents(numbers, tuple(chunks)))


def with_images(
    sequences: SequenceContext,
    images_BS: Tensor,
    cp: int,
    cp_size: int,
    dtype: torch.dtype,
    *,
    whole: bool = False,
) -> SequenceContext:
    """Return the context in which tokens with the same image number see each other.

    Text has negative numbers. `whole`: beyond the windows of layers, too, as prompts do. Layers
    share the masks: attention makes no copies of them.
    """
    seq = images_BS.shape[1]
    everywhere = sequences.lower_right(seq, seq)
    same = (images_BS[:, :, None] == images_BS[:, None, :]) & (images_BS[:, None, :] >= 0)
    if sequences.reach is not None and not whole:
        place = torch.arange(seq, device=images_BS.device)
        same &= place[:, None] - place < sequences.reach
    if sequences.documents is not None and not whole:
        numbers = sequences.documents.numbers
        same &= numbers[:, :, None] == numbers[:, None, :]
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


def places(documents: Documents | None, seq: int, device: torch.device) -> Tensor:
    """Return the place of each token in its document, [B, S]; without documents, [S]."""
    found = torch.arange(seq, device=device)
    if documents is None:
        return found
    begins = documents.numbers.diff(dim=1, prepend=documents.numbers[:, :1]) != 0
    return found - torch.where(begins, found, 0).cummax(dim=1).values


def query_factors(
    scaling: QueryScaling | None,
    documents: Documents | None,
    held: Tensor,
    seq: int,
    dtype: torch.dtype,
) -> Tensor | None:
    """Return the factors of queries at the places `held` of sequences of `seq` tokens.

    Positions count anew in each document. None if all factors are 1. Shapes: [S] for S places;
    with documents [B, S].
    """
    if scaling is None or seq - 1 + scaling.first_position < scaling.length:
        return None
    positions = places(documents, seq, held.device)[..., held] + scaling.first_position
    steps = (positions // scaling.length).to(torch.promote_types(dtype, torch.float32))
    return 1 + scaling.beta * torch.log1p(steps)


def in_order(x_NF: Tensor, batch: int, cp_size: int) -> Tensor:
    """Return zigzag shards as sequences in order, [B, S, ...].

    Shapes: [cp_size * B * S / cp_size, ...], one cp rank after another, each [B, 2 chunks].
    """
    if cp_size == 1:
        return x_NF.view(batch, -1, *x_NF.shape[1:])
    shards = x_NF.view(cp_size, batch, 2, -1, *x_NF.shape[1:])
    # First chunks are 0 .. cp-1 in the order of the ranks, second chunks run backwards.
    chunks = torch.cat([shards[:, :, 0], shards[:, :, 1].flip(0)])
    return chunks.transpose(0, 1).flatten(1, 2)


def in_shards(x_BSF: Tensor, cp_size: int) -> Tensor:
    """Return sequences as zigzag shards, the inverse of `in_order`."""
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
    rotary: Rotary | None,
    dtype: torch.dtype,
    *,
    documents: Documents | None,
    routing: RoutingContext | None = None,
) -> SequenceContext:
    """Return the context of `batch` sequences with `positions` held by this rank.

    Shapes: positions [S] of all sequences, or [B, S]; [axes, B, S] for several axes. Positions may
    continue from one document to the next where only distances matter.
    """
    if rotary is None:
        return SequenceContext(batch, positions.device, None, None, documents, routing)
    angle = angles(positions, rotary.size, rotary.theta, dtype, rotary.scaling)
    if positions.dim() == 3:
        if rotary.axes is None:
            raise ValueError("positions on several axes need the axis of each pair of a head")
        axis_of = to_device(np.array(rotary.axes, dtype=np.int64), positions.device)
        angle = angle.gather(0, axis_of.expand(1, *angle.shape[1:])).squeeze(0)
    cos, sin = cos_and_sin(angle, rotary.scaling)
    return SequenceContext(batch, positions.device, cos, sin, documents, routing)
