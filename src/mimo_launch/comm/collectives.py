"""The collectives that we use, for every supported torch.

Decides: one name for each call that torch 2.13 renamed, and padding for uneven shards.
Relies on: groups from `process_groups`; a group without a handle has one rank and needs no call;
for objects, pickles between ranks of one job, which trust each other.
Leaves: gradients to `autograd_collectives`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, Work

from mimo_launch.comm.process_groups import Group

# torch 2.13 renamed both; the old names warn there and the new ones do not exist before.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


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


def gather_objects(value: Any, group: ProcessGroup | None = None) -> list[Any]:
    """Return the values of all ranks of `group` (default: the world), by rank."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def from_first(value: Any, group: ProcessGroup) -> Any:
    """Return the value of the first rank of `group`, rank 0."""
    values = [value]
    dist.broadcast_object_list(values, src=0, group=group)
    return values[0]
