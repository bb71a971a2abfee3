"""Attention contexts for sequences of tokens, made once per microbatch; rotary embeddings.

Decides: which tokens of a sequence attend to which; positions of this rank's tokens, in zigzag
order; the angle of each pair of a head at a position: frequencies, and their scaling in models
trained further on longer sequences; the factors on queries of later tokens.
Relies on: the spec for the settings of a scaling.
Leaves: lists of images to `image_contexts`, and rotation and attention to `attention`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.kinds.layer import Rotary
from mimo_launch.layers.router import RoutingContext
from mimo_launch.spec.layers import QueryScaling
from mimo_launch.spec.spec import RopeScaling

# Base of the 2-D rotary embedding, the same in every published model that has one.
ROPE2D_THETA = 10000.0


def cos_and_sin(angle: Tensor, scaling: RopeScaling | None) -> tuple[Tensor, Tensor]:
    """Return the factors of queries and keys, from the angles of the pairs of a head."""
    angle = torch.cat([angle, angle], dim=-1)
    stretch = 1.0 if scaling is None else scaling.stretch
    return angle.cos() * stretch, angle.sin() * stretch


def angles(
    positions: Tensor, head_size: int, theta: float, dtype: torch.dtype, scaling: RopeScaling | None
) -> Tensor:
    """Return the angle of each pair of a head at each position, in at least fp32."""
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_size, 2, device=positions.device, dtype=wide) / head_size
    frequency = theta**-exponent
    if scaling is not None:
        frequency = scaled(frequency, scaling, theta)
    return positions.to(wide).unsqueeze(-1) * frequency


def scaled(frequency: Tensor, scaling: RopeScaling, theta: float) -> Tensor:
    """Return the frequencies of a model that was trained further on longer sequences.

    Sources: Llama 3.1 (arXiv:2407.21783, section 3.4.2), as in its published code; linear:
    arXiv:2306.15595, section 3; YaRN: arXiv:2309.00071, section 3.2, by pairs as in its code.
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
    """Return the two pair numbers, as fractions, between which YaRN interpolates."""

    def turning(times: float) -> float:
        """Return the pair that turns `times` times within the original length."""
        length = scaling.original_max_position_embeddings / (2 * math.pi * times)
        return pairs * math.log(length) / math.log(theta)

    first, last = turning(scaling.beta_fast), turning(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    # As published, to avoid a division by 0.
    return first, last if last != first else last + 0.001


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents packed into sequences, by `numbers` [sequences, positions].

    `lengths` are the lengths of all documents, sequence after sequence, on the host.
    """

    numbers: Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SequenceContext:
    """`batch` sequences of equal length; a token attends to itself and to earlier tokens.

    `cos` and `sin` [S, K] rotate the S tokens that this rank holds of each sequence; [B, S, K] if
    the sequences differ in positions; None if attention has no positions. `documents` are packed
    into sequences and do not attend to each other. A token attends to the last `reach` tokens,
    itself included; None: to all. `routing` is for the balance of experts. If some tokens attend to
    later ones, `masks` are added to the scores, one for each chunk of a sequence that this rank
    holds, over all positions of the sequence: [B, 1, queries, S]. Queries are multiplied by
    `factors`, [S] or [B, S], if there are any.
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

    @property
    def needs_mask(self) -> bool:
        """Whether a token does not attend to all earlier tokens of its sequence."""
        return self.documents is not None or self.reach is not None

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


def with_images(
    sequences: SequenceContext, images_BS: Tensor, cp: int, cp_size: int, dtype: torch.dtype
) -> SequenceContext:
    """Return the context in which tokens with the same image number see each other.

    Text has negative numbers. Layers share the masks: attention makes no copies of them.
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


def query_factors(
    scaling: QueryScaling | None,
    documents: Documents | None,
    held: Tensor,
    seq: int,
    dtype: torch.dtype,
) -> Tensor | None:
    """Return the factors of queries at the places `held` of sequences of `seq` tokens.

    Positions count from 0 in each document. None if all factors are 1. Shapes: [S] for S places;
    with documents [B, S].
    """
    if scaling is None or seq <= scaling.length:
        return None
    positions = held
    if documents is not None:
        places = torch.arange(seq, device=held.device)
        begins = documents.numbers.diff(dim=1, prepend=documents.numbers[:, :1]) != 0
        positions = (places - torch.where(begins, places, 0).cummax(dim=1).values)[:, held]
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

    Shapes: positions [S], for all axes and all sequences; or [axes, B, S]. Positions may continue
    from one document to the next: only distances matter to a rotary embedding.
    """
    if rotary is None:
        return SequenceContext(batch, positions.device, None, None, documents, routing)
    angle = angles(positions, rotary.size, rotary.theta, dtype, rotary.scaling)
    if positions.dim() > 1:
        if rotary.axes is None:
            raise ValueError("positions on several axes need the axis of each pair of a head")
        axis_of = to_device(np.array(rotary.axes, dtype=np.int64), positions.device)
        angle = angle.gather(0, axis_of.expand(1, *angle.shape[1:])).squeeze(0)
    cos, sin = cos_and_sin(angle, rotary.scaling)
    return SequenceContext(batch, positions.device, cos, sin, documents, routing)
