"""The collectives that we use, for every supported torch, and their first use.

Decides: one name for each call that torch 2.13 renamed, and padding for uneven shards; the calls
made once at the start, and their order.
Relies on: groups from `process_groups`; a group without a handle has one rank and needs no call.
Leaves: gradients to `autograd_collectives`.

NCCL creates a communicator, and the connections of an algorithm, at the first call that uses it.
Gloo, too, connects two ranks when both first need it (TORCH_GLOO_LAZY_INIT). This makes the host
wait for the other ranks, and no schedule accounts for such a wait in the middle of a step. In
`warm` every rank goes through its communicators in one global order, so no cycle of waits forms.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, Work

from mimo_launch.comm.process_groups import GridSet, Group
from mimo_launch.schedule.channels import Channel

# torch 2.13 renamed both; the old names warn there and the new ones do not exist before.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Started(Protocol):
    """An exchange that runs beside what follows."""

    def wait(self) -> Any:
        """Let what follows wait until the result is there."""


# Elements of a large collective (16 MB), which uses other algorithms than a small one.
LARGE = 1 << 22


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """Return the sum over `group`, in a new tensor."""
    if group.handle is None:
        return x
    out = x.contiguous().clone()
    dist.all_reduce(out, group=group.handle)
    return out


def all_reduce_max(x: Tensor, group: Group) -> Tensor:
    """Return the elementwise maximum over `group`, in a new tensor."""
    if group.handle is None:
        return x
    out = x.contiguous().clone()
    dist.all_reduce(out, op=dist.ReduceOp.MAX, group=group.handle)
    return out


def all_gather(x: Tensor, group: Group) -> Tensor:
    """Concatenate the equal shards of `group` along dim 0."""
    if group.handle is None:
        return x
    out = x.new_empty((x.shape[0] * group.size, *x.shape[1:]))
    _all_gather(out, x.contiguous(), group=group.handle)
    return out


def reduce_scatter(x: Tensor, group: Group) -> Tensor:
    """Return this rank's shard along dim 0 of the sum over `group`."""
    if group.handle is None:
        return x
    out = x.new_empty((x.shape[0] // group.size, *x.shape[1:]))
    _reduce_scatter(out, x.contiguous(), group=group.handle)
    return out


def all_to_all(x: Tensor, group: Group) -> Tensor:
    """Return the equal parts, along dim 0, that all ranks of `group` send to this one, by rank."""
    if group.handle is None:
        return x
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(out, x.contiguous(), group=group.handle)
    return out


def start_gather(x: Tensor, group: Group) -> tuple[Tensor, Started]:
    """Start an `all_gather` over several ranks; its result is there after the wait."""
    if group.copies is not None and group.copies.gathers(x.nbytes):
        return group.copies.gather(x.contiguous())
    out = x.new_empty((x.shape[0] * group.size, *x.shape[1:]))
    return out, _all_gather(out, x.contiguous(), group=group.handle, async_op=True)


def room(rows: int, x: Tensor, width: int, group: Group) -> Tensor:
    """Return where to write the rows of an exchange, [rows, width] in the type of x."""
    shape = torch.Size((rows, width))
    if group.copies is not None and group.copies.exchanges(rows * width * x.element_size()):
        return group.copies.room(shape, x.dtype)
    return x.new_empty(shape)


def start_exchange(x: Tensor, group: Group) -> tuple[Tensor, Started]:
    """Start to send equal parts of x, along dim 0, to the other ranks, and to receive theirs.

    Parts are in the order of ranks, without this one; x is from `room`. The result is there after
    the wait.
    """
    if group.copies is not None and group.copies.exchanges(x.nbytes):
        return group.copies.exchange(x)
    out = torch.empty_like(x)
    sizes = [x.shape[0] // (group.size - 1)] * group.size
    sizes[group.index] = 0
    work = dist.all_to_all_single(out, x, sizes, sizes, group=group.handle, async_op=True)
    return out, require_work(work)


def reduce_scatter_into(
    out: Tensor, x: Tensor, group: ProcessGroup, op: ReduceOp.RedOpType, *, async_op: bool
) -> Work | None:
    """Reduce x into this rank's shard `out`, both flat, as FSDP2 asks for it."""
    work: Work | None = _reduce_scatter(out, x, group=group, op=op, async_op=async_op)
    return work


def broadcast(x: Tensor, source: int, group: Group) -> Tensor:
    """Return what group rank `source` holds."""
    if group.handle is not None:
        dist.broadcast(x, group.ranks[source], group=group.handle)
    return x


def all_gather_uneven(x: Tensor, sizes: tuple[int, ...], group: Group) -> Tensor:
    """Concatenate shards of unequal length along dim 0.

    Shapes: x [sizes[group.index], ...] -> [sum(sizes), ...]. Traffic: padded to the longest shard,
    because backends gather equal shapes only.
    """
    if group.handle is None:
        return x
    longest = max(sizes)
    padded = x.new_zeros((longest, *x.shape[1:]))
    padded[: x.shape[0]] = x
    gathered = all_gather(padded, group).view(group.size, longest, *x.shape[1:])
    return torch.cat([gathered[i, :size] for i, size in enumerate(sizes)])


def reduce_scatter_uneven(x: Tensor, sizes: tuple[int, ...], group: Group) -> Tensor:
    """Return this rank's shard of the sum of x, [sum(sizes), ...] -> [sizes[group.index], ...].

    Traffic: padded to the longest shard, because backends scatter equal shapes only.
    """
    padded = x.new_zeros((group.size, max(sizes), *x.shape[1:]))
    for shard, values in zip(padded, torch.split(x, list(sizes)), strict=True):
        shard[: values.shape[0]] = values
    return reduce_scatter(padded.flatten(0, 1), group)[: sizes[group.index]].clone()


def all_to_all_uneven(
    x: Tensor, send: Sequence[int], receive: Sequence[int], group: Group
) -> Tensor:
    """Return the rows that all ranks of `group` send to this one: `receive[i]` rows from rank i.

    Shapes: x [sum(send), ...] -> [sum(receive), ...].
    """
    out = x.new_empty((sum(receive), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), list(receive), list(send), group=group.handle)
    return out


def require_work(work: Work | None) -> Work:
    """Return the handle of a posted transfer.

    Raises: RuntimeError on a rank outside the group, where torch returns None.
    """
    if work is None:
        raise RuntimeError("a point-to-point action was posted on a rank outside its group")
    return work


def warm(grids: GridSet, channels: Sequence[Channel]) -> None:
    """Use every communicator that this rank will use; `channels` are the channels of its program.

    Collectives of gloo need no warm-up: a rank waits for the others in them anyway.

    Ranks: collective over the world.
    """
    if grids.device.type == "cuda":
        for group in grids.own_groups():
            for per_rank in (1, LARGE // group.size):
                probe = torch.ones(per_rank * group.size, device=grids.device)
                all_reduce(probe, group)
                all_gather(probe, group)
                reduce_scatter(probe, group)
                dist.all_to_all_single(torch.empty_like(probe), probe, group=group.handle)
        dist.all_reduce(torch.ones(1, device=grids.device))
    token = torch.ones(1, device=grids.device)
    for channel in channels:
        group_of_pair = grids.p2p(channel)
        if channel.src == grids.rank:
            work = dist.isend(token, channel.dst, group=group_of_pair)
        else:
            work = dist.irecv(token, channel.src, group=group_of_pair)
        require_work(work).wait()
    if grids.device.type == "cuda":
        torch.cuda.synchronize(grids.device)
