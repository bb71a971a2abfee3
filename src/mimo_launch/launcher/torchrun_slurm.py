"""Processes that torchrun or srun started: their part in the job.

Decides: RANK and WORLD_SIZE together, as torchrun sets them, mean a rank. Under srun, one task per
rank joins as that rank, or one task per host is that host's launcher; they meet at the first host
of the list, at a port computed from the job's number.
Relies on: the environment of torchrun, or of a step of srun (SLURM_STEP_*), not of the batch script
around it.
Leaves: how ranks find each other to `joined_world`, launchers of several hosts to
`host_rendezvous`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_UNSET = (
    "torchrun sets them all; to start workers here, unset RANK and WORLD_SIZE, or give --nnodes"
)
# Below the ports that the kernel assigns.
_FIRST_PORT, _NUM_PORTS = 15000, 15000


class WrongEnvironment(ValueError):
    """The environment says that this process is a rank, but contradicts itself."""


class WrongTasks(ValueError):
    """srun started a number of tasks that matches neither ranks nor hosts."""


@dataclass(frozen=True, slots=True)
class Joined:
    """This process is a rank that torchrun or srun started."""

    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class NodePlace:
    """This process launches the workers of host `node` of `num_nodes`; all meet at `endpoint`."""

    node: int
    num_nodes: int
    endpoint: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a step."""

    rank: int
    num_tasks: int
    local_rank: int
    node: int
    num_nodes: int
    first_host: str
    step: str
    port: int


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
    """Return the role of a task in a job of `world_size` ranks; None means a lone launcher.

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
    """Return the variables that torch reads to join as a rank of a step."""
    return {
        "RANK": str(task.rank),
        "WORLD_SIZE": str(task.num_tasks),
        "LOCAL_RANK": str(task.local_rank),
        "MASTER_ADDR": task.first_host,
        "MASTER_PORT": str(task.port),
    }


class NodelistError(ValueError):
    """A list of hosts does not follow SLURM's notation."""


def slurm_task(environ: Mapping[str, str]) -> Task | None:
    """Return this process's task, if srun started it.

    Raises: NodelistError.
    """
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS")
    if "SLURM_PROCID" not in environ or "SLURM_STEP_ID" not in environ or tasks is None:
        return None
    job, step = environ.get("SLURM_JOB_ID", "0"), environ["SLURM_STEP_ID"]
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "localhost")
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES", "1")
    digits = re.sub(r"\D", "", job + step) or "0"
    return Task(
        rank=int(environ["SLURM_PROCID"]),
        num_tasks=int(tasks),
        local_rank=int(environ.get("SLURM_LOCALID", "0")),
        node=int(environ.get("SLURM_NODEID", "0")),
        num_nodes=int(nodes),
        first_host=next(expand(hosts)),
        step=f"{job}.{step}",
        port=_FIRST_PORT + int(digits) % _NUM_PORTS,
    )


def expand(hosts: str) -> Iterator[str]:
    """Yield the hosts of a list such as `gpu[01-03,07],login,rack[1-2]n[0-1]`.

    Raises: NodelistError.
    """
    # Split at commas outside of brackets.
    items = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", hosts)
    if not items or ",".join(items) != hosts.strip():
        raise NodelistError(f"{hosts!r} is not a list of hosts such as node[01-03,07]")
    for item in items:
        yield from _expand_item(item.strip(), hosts)


def _expand_item(item: str, hosts: str) -> Iterator[str]:
    head, bracket, rest = item.partition("[")
    if not bracket:
        yield item
        return
    inside, _, tail = rest.partition("]")
    for part in inside.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise NodelistError(f"{part!r} in {hosts!r} is not a number or a range such as 01-03")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            for end in _expand_item(tail, hosts) if tail else ("",):
                yield f"{head}{number:0{len(match[1])}d}{end}"
