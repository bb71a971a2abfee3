"""Carries out the transfers of a bridge: packs rows, moves them, unpacks them.

Decides: buffers and calls; collective between phases, pairwise inside a pipeline.
Relies on: transfers from `layout.bridge_routing`, listed in the same order on both sides.
Leaves: gathers inside a tp group to `autograd_collectives`.

Rows that stay on their rank are copied, not sent. Shapes follow from the StepData on both sides, so
there is no handshake.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from mimo_launch.comm.async_copies import to_device
from mimo_launch.comm.collectives import all_to_all_uneven, require_work
from mimo_launch.comm.process_groups import Group
from mimo_launch.layout.bridge_routing import Transfer


@dataclass(frozen=True, slots=True)
class PeerRows:
    """Rows of this rank's buffer, in the order in which they are exchanged with one peer."""

    peer: int
    index: Tensor


@dataclass(frozen=True, slots=True)
class BridgeEnd:
    """One side of a bridge on one rank for one group: buffer length and rows per peer."""

    num_rows: int
    peers: tuple[PeerRows, ...]

    def of(self, rank: int) -> Tensor | None:
        """Return the rows exchanged with `rank`, if any."""
        return next((p.index for p in self.peers if p.peer == rank), None)


def source_end(
    transfers: Iterable[Transfer],
    rank: int,
    offsets: dict[int, int],
    num_rows: int,
    device: torch.device,
) -> BridgeEnd:
    """Return the source's side: rows of its output that this rank owns, by rank of the target.

    `offsets` gives the first row of each forward of the source in that buffer.
    """
    rows: dict[int, list[int]] = {}
    for t in transfers:
        if t.src == rank:
            start = offsets[t.src_forward] + t.src_start
            rows.setdefault(t.dst, []).extend(range(start, start + t.num_rows))
    return _end(num_rows, rows, device)


def target_end(
    transfers: Iterable[Transfer],
    rank: int,
    offsets: dict[int, int],
    num_rows: int,
    device: torch.device,
) -> BridgeEnd:
    """Return the target's side: rows of its input that this rank owns, by rank of the source."""
    rows: dict[int, list[int]] = {}
    for t in transfers:
        if t.dst == rank:
            start = offsets[t.dst_forward] + t.dst_start
            rows.setdefault(t.src, []).extend(range(start, start + t.num_rows))
    return _end(num_rows, rows, device)


def _end(num_rows: int, rows: dict[int, list[int]], device: torch.device) -> BridgeEnd:
    peers = (PeerRows(p, to_device(np.array(rows[p]), device)) for p in sorted(rows))
    return BridgeEnd(num_rows, tuple(peers))


def exchange(
    source: Tensor | None,
    sender: BridgeEnd | None,
    receiver: BridgeEnd | None,
    *,
    group: Group,
    rank: int,
    like: Tensor,
) -> Tensor | None:
    """Move rows between the two ends as one collective over a bridge component.

    Shapes: source [sender.num_rows, D] or None on a rank that sends nothing; result
    [receiver.num_rows, D] or None on a rank that receives nothing. `like` is an empty [0, D] tensor
    of the bridge's dtype. Ranks: collective over `group`.
    """
    out = None if receiver is None else like.new_empty((receiver.num_rows, like.shape[1]))
    copy_local(source, sender, out, receiver, rank)
    if group.handle is None:
        return out
    send, counts = [], []
    for peer in group.ranks:
        # Rows that stay on this rank are already in place.
        leaving = None if sender is None or peer == rank else sender.of(peer)
        coming = None if receiver is None or peer == rank else receiver.of(peer)
        rows = None if source is None or leaving is None else source.index_select(0, leaving)
        send.append(like if rows is None else rows)
        counts.append(0 if coming is None else len(coming))
    sizes = [part.shape[0] for part in send]
    received = all_to_all_uneven(torch.cat(send), sizes, counts, group)
    for peer, part in zip(group.ranks, torch.split(received, counts), strict=True):
        if part.shape[0] and out is not None and receiver is not None:
            out[receiver.of(peer)] = part
    return out


@dataclass(slots=True)
class PostedTransfers:
    """Transfers in progress, with their buffers, in the order of peers."""

    works: list[Work]
    buffers: list[Tensor]


# The group that carries rows from one rank to another.
GroupOf = Callable[[int, int], ProcessGroup]


def post_sends(
    source: Tensor, sender: BridgeEnd, group_of: GroupOf, *, rank: int
) -> PostedTransfers:
    """Start to send rows to every peer; rows for this rank itself are not sent."""
    pending = PostedTransfers([], [])
    for peer in sender.peers:
        if peer.peer != rank:
            buffer = source.index_select(0, peer.index)
            pending.buffers.append(buffer)
            work = dist.isend(buffer, peer.peer, group=group_of(rank, peer.peer))
            pending.works.append(require_work(work))
    return pending


def post_receives(
    receiver: BridgeEnd, group_of: GroupOf, *, rank: int, like: Tensor
) -> PostedTransfers:
    """Start to receive rows from every peer, in the order of `receiver.peers`."""
    pending = PostedTransfers([], [])
    for peer in receiver.peers:
        if peer.peer != rank:
            buffer = like.new_empty((len(peer.index), like.shape[1]))
            pending.buffers.append(buffer)
            work = dist.irecv(buffer, peer.peer, group=group_of(peer.peer, rank))
            pending.works.append(require_work(work))
    return pending


def finish_receives(
    receiver: BridgeEnd, pending: PostedTransfers, *, rank: int, like: Tensor
) -> Tensor:
    """Wait for `post_receives` and return the rows in their order, [receiver.num_rows, D]."""
    out = like.new_empty((receiver.num_rows, like.shape[1]))
    remote = [peer for peer in receiver.peers if peer.peer != rank]
    for peer, work, buffer in zip(remote, pending.works, pending.buffers, strict=True):
        work.wait()
        out[peer.index] = buffer
    return out


def wait_all(pendings: Sequence[PostedTransfers]) -> None:
    """Wait until every send has left its buffer."""
    for pending in pendings:
        for work in pending.works:
            work.wait()


def copy_local(
    source: Tensor | None,
    sender: BridgeEnd | None,
    out: Tensor | None,
    receiver: BridgeEnd | None,
    rank: int,
) -> None:
    """Copy the rows that stay on this rank from its own source to their places in `out`."""
    if source is None or sender is None or out is None or receiver is None:
        return
    mine, theirs = sender.of(rank), receiver.of(rank)
    if mine is not None and theirs is not None:
        out[theirs] = source.index_select(0, mine)
