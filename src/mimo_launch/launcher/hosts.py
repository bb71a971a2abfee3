"""The hosts of a job, seen from one launcher: this host alone, or several.

Decides: what launchers report to each other: that they are present, that something is wrong, and
what they know. Workers of several hosts start, fail and leave together: node 0 judges a failure
from the reports of all hosts, and decides whether to start again.
Relies on: `host_rendezvous` for the launchers of other hosts; nothing on one host.
Leaves: workers to `start_workers`, words to `failure_report`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from mimo_launch.launcher.failure_report import headline
from mimo_launch.launcher.host_messages import AllHosts, HostMessages
from mimo_launch.launcher.host_rendezvous import HostRendezvous
from mimo_launch.launcher.network import Rendezvous, WorkerStore
from mimo_launch.launcher.run_lock import RunLock
from mimo_launch.launcher.signals import Interrupted, StopRequest
from mimo_launch.launcher.torchrun_slurm import NodePlace
from mimo_launch.launcher.verdict import (
    Circumstances,
    RankState,
    RunFailed,
    diagnose,
    from_json,
    to_json,
)
from mimo_launch.launcher.worker_logs import next_attempt
from mimo_launch.plan.plan import Plan

Examine = Callable[[], list[RankState]]
REPORT_SECONDS = 5.0


class FolderCheck(Protocol):
    """Knows whether the run folder still belongs to the run."""

    @property
    def lost(self) -> str:
        """Why the folder is lost, as far as is known; "" while it is not."""

    def stopping(self) -> None:
        """Record that the run was asked to end."""

    def check(self) -> str:
        """Look now; return what happened to the folder, or ""."""


class WatchedHosts:
    """All hosts of a job (one or more), seen from the process that watches the workers of one.

    `node` is its number. Node 0 asks `lock` whether the run folder still belongs to the run.
    """

    def __init__(self, everyone: AllHosts, attempt: int, lock: FolderCheck | None = None) -> None:
        self.node, self.lock = everyone.node, lock
        self._everyone, self._attempt = everyone, attempt
        self._absent: list[int] = []

    def alarm(self) -> bool:
        """Return whether another host has an alarm or is silent. Raises: Interrupted."""
        everyone = self._everyone
        for node in everyone.others:
            number = everyone.messages.said(node, "interrupted")
            if number:
                raise Interrupted(number)
        return bool(everyone.silent) or any(everyone.said(n, "alarm") for n in everyone.others)

    def all_done(self) -> bool:
        """Report the workers of this host as done; return whether all hosts have."""
        everyone = self._everyone
        if not everyone.said(self.node, "done"):
            everyone.say("done", True)
        return all(everyone.said(node, "done") for node in range(everyone.num_nodes))

    def interrupted(self, signal: int) -> None:
        """Report that this host ends immediately."""
        self._everyone.messages.say(interrupted=signal)
        self._everyone.messages.flush(1.0)

    def failed_run(
        self, plan: Plan, examine: Examine, *, oom_killed: Callable[[], bool], frozen_s: float
    ) -> RunFailed:
        """Return node 0's verdict on all reports, or this host's if node 0 does not answer."""
        everyone = self._everyone
        everyone.say("alarm", True)
        states, oom = examine(), oom_killed()
        if self.node:
            everyone.say("report", [to_json(states), oom, frozen_s])
            everyone.until(
                lambda: everyone.said(0, "verdict") is not None or 0 in everyone.silent,
                2 * REPORT_SECONDS,
            )
            verdict = everyone.said(0, "verdict")
            absent = [] if verdict else [0]
        else:
            verdict, absent = None, self._reports(states)
            reports = [everyone.said(n, "report") for n in everyone.others if n not in absent]
            oom = oom or any(report[1] for report in reports)
            frozen_s = max([frozen_s, *(report[2] for report in reports)])
        failure = diagnose(
            plan,
            states,
            attempt=self._attempt,
            hosts=tuple(everyone.host(node) for node in range(everyone.num_nodes)),
            absent=tuple(everyone.host(node) for node in absent),
            around=Circumstances(
                oom_killed=oom,
                frozen_s=frozen_s,
                folder_lost="" if self.lock is None else self.lock.lost,
            ),
        )
        self._absent = absent
        if self.node == 0:
            everyone.say("verdict", [headline(failure), failure.restartable, failure.code])
            everyone.messages.flush(1.0)
        return RunFailed(failure, *(verdict or ()))

    def _reports(self, states: list[RankState]) -> list[int]:
        """Add the reports of other hosts to `states`; return the nodes that do not answer."""
        everyone = self._everyone

        def missing() -> list[int]:
            return [node for node in everyone.others if everyone.said(node, "report") is None]

        everyone.until(lambda: not set(missing()) - set(everyone.silent), REPORT_SECONDS)
        absent = missing()
        for node in everyone.others:
            if node not in absent:
                states += from_json(everyone.said(node, "report")[0])
        return absent

    def close(self) -> None:
        """Leave the job."""
        self._everyone.close(self._absent)


class Hosts(WatchedHosts, ABC):
    """All hosts of a job, seen from the launcher of one, which starts the workers `ranks`.

    The launcher of the first host holds the lock of the run folder.
    """

    ranks: range
    world_size: int

    @abstractmethod
    def rendezvous(self) -> Rendezvous:
        """Wait until all hosts are ready for an attempt, and agree where its workers meet."""


class OneHost(Hosts):
    """A job on this machine alone."""

    def __init__(self, world_size: int, run: Path, lock: RunLock | None = None) -> None:
        self.ranks, self.world_size, self._run = range(world_size), world_size, run
        self._store: WorkerStore | None = None
        messages = HostMessages(None, 0, 1)
        messages.say(name="localhost", ranks=list(self.ranks))
        super().__init__(AllHosts(messages, 0, 1), 0, lock)

    def rendezvous(self) -> Rendezvous:
        """Open a store that no earlier attempt has used."""
        self._attempt = next_attempt(self._run)
        self._everyone.attempt_number += 1
        if self._store is not None:
            self._store.close()
        self._store = WorkerStore("localhost")
        return Rendezvous(self._attempt, self._store.environment, self._store)


class ManyHosts(Hosts):
    """All hosts of a job, seen from the launcher of one of them."""

    def __init__(
        self, place: NodePlace, plan: Plan, options: str, run: Path, stop: StopRequest
    ) -> None:
        """Meet the launchers of all other hosts; all must have the same `options`.

        Raises: HostsError, Interrupted.
        """
        self.world_size = plan.layout.world_size
        per_host = self.world_size // place.num_nodes
        self.ranks = range(place.node * per_host, (place.node + 1) * per_host)
        self._run = run
        same = f"{plan.identity} on {options}"
        timeout = plan.spec.train.timeout
        self._met = HostRendezvous(place, self.ranks, same, stop, timeout=timeout)
        super().__init__(self._met, 0)

    def rendezvous(self) -> Rendezvous:
        """Agree on the next attempt. Raises: HostsError, Dismissed, Interrupted."""
        rendezvous = self._met.rendezvous(self._run)
        self._attempt = rendezvous.attempt
        return rendezvous

    def dismiss(self, code: int) -> None:
        """Tell the other hosts that there is nothing to do."""
        self._met.messages.say(dismissed=code)
