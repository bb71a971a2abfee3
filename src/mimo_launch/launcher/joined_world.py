"""The ranks that torchrun or srun started: how they find each other, and what the first one says.

Decides: the first rank looks at the run folder for all, and says whether there is anything to run
and which ranks share a watcher; its store listens only at MASTER_ADDR.
Relies on: MASTER_ADDR and MASTER_PORT. Under torchrun, its agent has a store there, in which the
first rank publishes the place of a store that it opens for each start: the agent's store keeps all
keys of earlier starts.
Leaves: the process group to `worker`, watching to `rank_watcher`.
"""

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any

from mimo_launch.launcher.forking import import_for_workers
from mimo_launch.launcher.network import answers, listen_at, local_address, open_store
from mimo_launch.launcher.torchrun_slurm import Joined
from mimo_launch.launcher.verdict import Host

POLL_SECONDS = 0.05
_PLACE, _TOLD, _HEARD, _WATCHER = "mimo/place", "mimo/told", "mimo/heard", "mimo/watcher"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What all ranks learn when their run begins.

    `attempt` counts the attempts of the run; each of the `hosts` has a watcher. The watchers meet
    at `port` of the first rank's host.
    """

    attempt: int
    hosts: tuple[Host, ...]
    port: int

    def to_json(self) -> str:
        """Return this as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Beginning":
        """Return what `to_json` wrote."""
        raw = json.loads(text)
        hosts = (Host(**{**host, "ranks": tuple(host["ranks"])}) for host in raw["hosts"])
        return cls(raw["attempt"], tuple(hosts), raw["port"])


class JoinedWorld:
    """The ranks of a job, seen from one of them; `timeout` is in seconds."""

    def __init__(self, joined: Joined, *, timeout: int) -> None:
        """Open the store on the first rank, or wait for it. Raises: OSError, RuntimeError."""
        import_for_workers()
        self._joined, self._timeout = joined, timeout
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            self._store: Any = self._beside(open_store(host, port, None, timeout), host)
            return
        listener = None if joined.rank else listen_at(host, port)
        self._store = open_store(host, port, listener, timeout)

    def _beside(self, agent: Any, host: str) -> Any:
        """Return the first rank's store; its place is published in torchrun's store, `agent`."""
        if self._joined.rank:
            return open_store(*self._place_told(agent, host), None, self._timeout)
        listener = listen_at(host, 0)
        own, port = listener.getsockname()[:2]
        if ip_address(own).is_unspecified:
            own = local_address(host, port)
        store = open_store(own, port, listener, self._timeout)
        agent.set(_PLACE, json.dumps([own, port]))
        return store

    def _place_told(self, agent: Any, host: str) -> tuple[str, int]:
        """Wait until the first rank's store answers, and return its address.

        The agent may still hold the place of an earlier start's store, which no longer answers. A
        service at MASTER_ADDR may forward only the agent's port.
        """
        until = time.monotonic() + self._timeout
        while True:
            own, port = json.loads(agent.get(_PLACE))
            for address in (host, own):
                if answers(address, port):
                    return address, port
            if time.monotonic() > until:
                raise RuntimeError(f"no store answers at {host}:{port}")
            time.sleep(POLL_SECONDS)

    @property
    def group(self) -> dict[str, Any]:
        """The arguments of the process group."""
        joined = self._joined
        return {"store": self._store, "rank": joined.rank, "world_size": joined.world_size}

    def introduce(self, watcher: str) -> None:
        """Tell the first rank which watcher this rank has; "" means none."""
        me = json.dumps([watcher, socket.gethostname()])
        self._store.set(f"{_WATCHER}/{self._joined.rank}", me)

    def hosts(self) -> tuple[Host, ...]:
        """Wait for all ranks, and return one host per watcher, ordered by their first ranks.

        Raises: RuntimeError if one does not come in time.
        """
        found: dict[tuple[str, str], list[int]] = {}
        for rank in range(self._joined.world_size):
            try:
                said = self._store.get(f"{_WATCHER}/{rank}")
            except RuntimeError as error:
                message = f"rank {rank} did not come within {self._timeout} s"
                raise RuntimeError(message) from error
            watcher, name = json.loads(said)
            if watcher:
                found.setdefault((watcher, name), []).append(rank)
        return tuple(
            Host(node=node, name=name, ranks=tuple(ranks))
            for node, ((_, name), ranks) in enumerate(found.items())
        )

    def say(self, told: Beginning | int) -> None:
        """Tell all others how the run begins, or its exit code, and then wait until they know."""
        ended = isinstance(told, int)
        self._store.set(_TOLD, str(told) if isinstance(told, int) else told.to_json())
        until = time.monotonic() + self._timeout
        others = self._joined.world_size - 1
        while ended and time.monotonic() < until:
            if self._store.add(_HEARD, 0) >= others:
                return
            time.sleep(POLL_SECONDS)

    def hear(self) -> Beginning | int:
        """Return the first rank's message: how the run begins, or its exit code."""
        said = self._store.get(_TOLD).decode()
        self._store.add(_HEARD, 1)
        return int(said) if said.isdecimal() else Beginning.from_json(said)
