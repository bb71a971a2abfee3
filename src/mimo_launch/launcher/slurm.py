"""What srun says about the task that this process is.

Decides: one task per rank joins as that rank, one task per host acts as that host's launcher; the
first host of the list and a port made from the job's number are where they meet.
Relies on: the environment of a step (SLURM_STEP_*), not of the batch script around it.
Leaves: joining to `torchrun`, launching to `one_host`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Below the ports that the kernel hands out.
_FIRST_PORT, _NUM_PORTS = 15000, 15000


class NodelistError(ValueError):
    """A list of hosts is not in SLURM's notation."""


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
    for item in _items(hosts):
        yield from _expand_item(item, hosts)


def _items(hosts: str) -> list[str]:
    """Split at commas outside of brackets."""
    items = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", hosts)
    if not items or ",".join(items) != hosts.strip():
        raise NodelistError(f"{hosts!r} is not a list of hosts such as node[01-03,07]")
    return [item.strip() for item in items]


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
