"""The hosts of a job, as one launcher sees them.

Decides: what launchers tell each other: that they are there, that something is wrong, and what
they know.
Relies on: nothing on one host.
Leaves: workers to `one_host`, several hosts to `many_hosts`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mimo_launch.launcher.failure import Host, RunFailed, diagnose
from mimo_launch.launcher.network import listen_at
from mimo_launch.launcher.run_lock import RunLock
from mimo_launch.launcher.verdict import RankState
from mimo_launch.launcher.worker_logs import next_attempt
from mimo_launch.spec.model import Spec

Examine = Callable[[], list[RankState]]


@dataclass(frozen=True, slots=True)
class Meeting:
    """What all hosts of an attempt agree on: its number, and where its workers meet."""

    attempt: int
    environment: dict[str, str]


class Hosts(Protocol):
    """All hosts of a job, seen from number `node`, whose workers are `ranks`.

    The first one holds the `lock` of the run folder.
    """

    node: int
    ranks: range
    world_size: int
    lock: RunLock | None

    def meet(self) -> Meeting:
        """Wait until all hosts are ready for an attempt, and open the store of its workers."""

    def alarm(self) -> bool:
        """Return whether another host has an alarm, or does not answer."""

    def all_done(self) -> bool:
        """Say that the workers of this host are done; return whether those of all hosts are."""

    def interrupted(self, signal: int) -> None:
        """Say that this host ends at once."""

    def diagnose(
        self, spec: Spec, examine: Examine, *, oom_killed: Callable[[], bool], frozen_s: float
    ) -> RunFailed:
        """Return the account of a failure, from what all hosts know."""

    def close(self) -> None:
        """Leave the job."""


class OneHost:
    """A job on this machine alone."""

    def __init__(self, world_size: int, run: Path, lock: RunLock | None = None) -> None:
        self.node, self.ranks, self.world_size = 0, range(world_size), world_size
        self.lock = lock
        self._run = run
        self._attempt = 0
        self._store: Any = None

    def meet(self) -> Meeting:
        """Open a store that no earlier attempt has used."""
        self._attempt = next_attempt(self._run)
        self._store, environment = worker_store("localhost")
        return Meeting(self._attempt, environment)

    def alarm(self) -> bool:
        """Return that nobody else has one."""
        return False

    def all_done(self) -> bool:
        """Return that there is nobody to wait for."""
        return True

    def interrupted(self, signal: int) -> None:
        """Tell nobody."""

    def diagnose(
        self, spec: Spec, examine: Examine, *, oom_killed: Callable[[], bool], frozen_s: float
    ) -> RunFailed:
        """Judge the workers of this host."""
        host = Host(node=0, name="localhost", ranks=tuple(self.ranks))
        return RunFailed(
            diagnose(
                spec,
                examine(),
                attempt=self._attempt,
                hosts=(host,),
                oom_killed=oom_killed(),
                frozen_s=frozen_s,
                folder_lost="" if self.lock is None else self.lock.lost,
            )
        )

    def close(self) -> None:
        """Leave nobody."""


def worker_store(address: str) -> tuple[Any, dict[str, str]]:
    """Open a store at a free port; return it, and how workers find it."""
    import torch.distributed as dist

    listener = listen_at(address, 0)
    port, fd = listener.getsockname()[1], listener.detach()
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd
    )
    environment = {"MASTER_ADDR": address, "MASTER_PORT": str(store.port)}
    if address == "localhost":
        # Left alone, gloo and NCCL take the interface of the host's name, or of the network.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            environment[name] = os.environ.get(name, "lo")
    return store, environment
