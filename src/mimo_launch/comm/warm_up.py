"""Creates communicators, and their connections, before the first step.

Decides: the calls made once at the start, and their order.
Relies on: `comm` for the groups, `schedule.channels` for the pairs of ranks that communicate.
Leaves: all later calls to the program.

NCCL creates a communicator, and the connections of an algorithm, at the first call that uses it.
Gloo, too, connects two ranks when both first need it (TORCH_GLOO_LAZY_INIT). This makes the host
wait for the other ranks, and no schedule accounts for such a wait in the middle of a step. Here
every rank goes through its communicators in one global order, so no cycle of waits can form.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from mimo_launch.comm.bridge_transfers import require_work
from mimo_launch.comm.collectives import all_gather, all_reduce, reduce_scatter
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.schedule.channels import Channel

# Elements of a large collective (16 MB), which uses other algorithms than a small one.
LARGE = 1 << 22


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
