"""Whether something else started this process as a rank, or as the launcher of one host.

Decides: that RANK and WORLD_SIZE together mean a rank, as torchrun sets them; what the tasks of
srun are to be.
Relies on: the environment only; no torch.
Leaves: the rendezvous of ranks to `worker`, of launchers to `many_hosts`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mimo_launch.launcher.slurm import Task

_UNSET = (
    "torchrun sets them all; to start workers here, unset RANK and WORLD_SIZE, or give --nnodes"
)


class WrongEnvironment(ValueError):
    """The environment says that this process is a rank, and what it says cannot be."""


class WrongTasks(ValueError):
    """srun started a number of tasks that fits neither ranks nor hosts."""


@dataclass(frozen=True, slots=True)
class Joined:
    """This process is a rank that something else started."""

    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class NodePlace:
    """This process launches the workers of host `node` of `num_nodes`; all meet at `endpoint`."""

    node: int
    num_nodes: int
    endpoint: str
    run_id: str


def torchrun_rank(environ: Mapping[str, str] = os.environ) -> Joined | None:
    """Return this process's rank if torchrun started it, else None. Raises: WrongEnvironment."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    rank, world = (_number(environ, name) for name in ("RANK", "WORLD_SIZE"))
    if rank >= world:
        raise WrongEnvironment(f"RANK={rank} is not below WORLD_SIZE={world}; {_UNSET}")
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]:
        raise WrongEnvironment(
            f"RANK={rank} and WORLD_SIZE={world} are set, {' and '.join(missing)} not; {_UNSET}"
        )
    for name in ("MASTER_PORT", "LOCAL_RANK"):
        _number({name: "0", **environ}, name)
    return Joined(rank, world)


def _number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].strip().isdecimal():
        raise WrongEnvironment(f"{name}={environ[name]} is not a number; {_UNSET}")
    return int(environ[name])


def slurm_place(task: Task, world_size: int) -> Joined | NodePlace | None:
    """Return what a task is for a job of `world_size` ranks; None is a launcher on its own.

    Raises: WrongTasks.
    """
    if task.num_tasks == world_size:
        return Joined(task.rank, world_size)
    if task.num_tasks == task.num_nodes:
        if task.num_nodes == 1:
            return None
        endpoint = f"{task.first_host}:{task.port}"
        return NodePlace(task.node, task.num_nodes, endpoint, task.step)
    raise WrongTasks(
        f"srun started {task.num_tasks} tasks on {task.num_nodes} hosts; the spec needs "
        f"{world_size} (one per rank) or {task.num_nodes} (one per host)"
    )


def slurm_environment(task: Task) -> dict[str, str]:
    """Return what torch reads to join as a rank of a step."""
    return {
        "RANK": str(task.rank),
        "WORLD_SIZE": str(task.num_tasks),
        "LOCAL_RANK": str(task.local_rank),
        "MASTER_ADDR": task.first_host,
        "MASTER_PORT": str(task.port),
    }
