"""The launchers of a job on several hosts, from the first contact to the start of an attempt.

Decides: node 0 chooses the number of an attempt and where its workers meet; all hosts must run the
same plan and see the same run folder; a host that is silent for `LOST_SECONDS` has left.
Relies on: `host_messages` to exchange facts with other launchers.
Leaves: what happens after the start to `hosts`.
"""

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mimo_launch.diag.exit_codes import ExitCode
from mimo_launch.launcher.forking import import_for_workers
from mimo_launch.launcher.host_messages import LOST_SECONDS, AllHosts, HostMessages
from mimo_launch.launcher.network import (
    Rendezvous,
    WorkerStore,
    address_of,
    answers,
    interface_of,
    listen_at,
    local_address,
    open_store,
    parse_endpoint,
)
from mimo_launch.launcher.signals import Interrupted, StopRequest
from mimo_launch.launcher.torchrun_slurm import NodePlace
from mimo_launch.launcher.worker_logs import next_attempt

# A shared file system may show a new file late.
FOLDER_SECONDS = 10.0


class HostsError(Exception):
    """The hosts of a job cannot start together; the message says why."""

    code = ExitCode.FAILED


class HostGone(HostsError):
    """A host that took part no longer answers."""

    code = ExitCode.ELSEWHERE


class Dismissed(Exception):
    """Node 0 has nothing to do; `code` is its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class HostRendezvous(AllHosts):
    """All launchers of a job."""

    def __init__(
        self, place: NodePlace, ranks: range, plan: str, stop: StopRequest, *, timeout: int
    ) -> None:
        """Meet all other launchers, which must have the same `plan`.

        Raises: HostsError if one does not come within `timeout` seconds or has another plan;
        Interrupted.
        """
        self._stop, self._timeout = stop, timeout
        self._address, port = parse_endpoint(place.endpoint)
        self._worker_store: WorkerStore | None = None
        node, num_nodes = place.node, place.num_nodes
        messages = HostMessages(self._store(place, port), node, num_nodes)
        super().__init__(messages, node, num_nodes)
        self.messages.say(
            name=socket.gethostname(),
            plan=plan,
            ranks=list(ranks),
            route=local_address(self._address, port),
            endpoint=address_of(self._address, port),
        )
        self.messages.start()
        self._wait_for_all("plan", self.messages.said, "did not connect")
        others = [node for node in self.others if self.messages.said(node, "plan") != plan]
        if others:
            raise self._apart(
                f"{self.names(others)} has another plan: its spec, --set options, --device or "
                "--profile differ"
            )

    def _store(self, place: NodePlace, port: int) -> Any:
        """Open the launchers' store at node 0, or wait for it elsewhere, and claim this node."""
        # torch logs a warning for every address without a name.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        import_for_workers()
        import torch.distributed as dist

        if place.node and not self._wait(lambda: answers(self._address, port)):
            raise HostsError(
                f"nothing has answered at {place.endpoint} for {self._timeout} s; the launcher of "
                "node 0 should be there"
            )
        try:
            listener = None if place.node else listen_at(self._address, port)
            tcp = open_store(self._address, port, listener, LOST_SECONDS)
        except (RuntimeError, OSError) as error:
            raise HostsError(f"cannot meet at {place.endpoint}: {error}") from error
        store = dist.PrefixStore(place.run_id, tcp)  # type: ignore[attr-defined]
        mine = secrets.token_hex(8)
        if store.compare_set(f"claim/{place.node}", "", mine).decode() != mine:
            raise HostsError(f"another launcher is already node {place.node} of {place.run_id}")
        return store

    def rendezvous(self, run: Path) -> Rendezvous:
        """Agree on the next attempt. Raises: HostsError, Dismissed, Interrupted."""
        self.attempt_number += 1
        if self.node == 0:
            attempt = next_attempt(run)
            # The store of an attempt stays open for its workers until the next attempt.
            if self._worker_store is not None:
                self._worker_store.close()
            self._worker_store = WorkerStore(self._address)
            place = self._worker_store.environment
            token = run / f".hosts-{secrets.token_hex(8)}"
            token.touch()
            self.say("go", [attempt, place, token.name])
            try:
                self._wait_for_all("sees", self.said, "did not get ready")
            finally:
                token.unlink()
            self.say("start", [node for node in self.others if not self.said(node, "sees")])
        else:
            self._wait_for_first("go")
            attempt, place, name = self.said(0, "go")
            self.say("sees", self.until((run / name).exists, FOLDER_SECONDS))
            self._wait_for_first("start")
        blind = self.said(0, "start")
        if blind:
            raise self._apart(
                f"{self.names(blind)} does not see the run folder {run} of node 0: all hosts need "
                "the same one; give --runs a shared folder"
            )
        return Rendezvous(attempt, {**place, **self._interface()}, self._worker_store)

    def _apart(self, message: str) -> HostsError:
        """Leave, with time for all hosts to see the cause, and return the error."""
        self.close()
        return HostsError(message)

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition before workers start, when even a first signal ends everything."""

        def holds() -> bool:
            if self._stop.signal:
                raise Interrupted(self._stop.signal)
            return condition()

        return self.until(holds, self._timeout)

    def _wait_for_all(self, name: str, said: Callable[[int, str], Any], failure: str) -> None:
        """Wait until every other node has published the fact `name`."""

        def missing() -> list[int]:
            return [node for node in self.others if said(node, name) is None]

        self._wait(lambda: not missing() or 0 in self.silent)
        if 0 in self.silent:
            raise HostGone(f"{self.names([0])} does not answer")
        if missing():
            nodes = ", ".join(str(node) for node in missing())
            raise self._apart(
                f"node {nodes} of {self.num_nodes} {failure} within {self._timeout} s"
            )

    def _wait_for_first(self, name: str) -> None:
        """Wait until node 0 has published the fact `name`."""

        def heard() -> bool:
            dismissed = self.messages.said(0, "dismissed")
            if dismissed is not None:
                raise Dismissed(dismissed)
            return self.said(0, name) is not None or 0 in self.silent

        if not self._wait(heard) or self.said(0, name) is None:
            raise HostGone(f"{self.names([0])} does not answer")

    def _interface(self) -> dict[str, str]:
        """Return the interface variable of gloo for this host, unless the user has set it."""
        if "GLOO_SOCKET_IFNAME" in os.environ:
            return {}
        address = self.messages.said(self.node, "route")
        if self.node == 0:
            # On node 0 itself, its name may resolve to the loopback address.
            address = self.messages.said(1, "endpoint") or address
        interface = interface_of(address)
        return {"GLOO_SOCKET_IFNAME": interface} if interface else {}
