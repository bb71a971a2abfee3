"""Watches the workers of this host, and examines them if something is wrong.

Decides: when to raise an alarm: a worker ended or failed, or no worker made progress for `timeout`
seconds. Only seconds in which this process ran count: no rank is to blame if the whole job stops.
Progress is what workers write into their cells; a thread that reports "alive" would continue in a
hung process. In a run that was asked to stop, signs of work within a phase do not count as
progress, except while it saves.
Relies on: `shared_progress`, `worker_processes`, and the files that workers write to; `hosts` for
the other machines of the job.
Leaves: the verdict to `verdict`, killing and restarting to `start_workers` and `rank_watcher`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mimo_launch.launcher.hosts import WatchedHosts
from mimo_launch.launcher.shared_progress import HostCells
from mimo_launch.launcher.verdict import RankState
from mimo_launch.launcher.worker_errors import nccl_watchdog_words, read_error
from mimo_launch.launcher.worker_logs import ERROR, STACK, STDERR, Recorder
from mimo_launch.launcher.worker_processes import (
    Exit,
    ExitWatch,
    StackFrame,
    process_state,
    take_stacks,
)
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Cause, Phase

# Failures come in groups; a moment later more of them are visible.
SETTLE_SECONDS = 0.2
# A killed process closes its connections first. With memory on a GPU it takes seconds more to end.
ENDING_SECONDS = 3.0
# The longest time between two looks of a running process; if it was longer, the process was frozen.
SEEN_SECONDS = 1.0
POLL_SECONDS = 0.05
# A worker is deaf if its threads get no interpreter for this long, or for the timeout if shorter.
DEAF_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWorker:
    """One worker of this host: rank, process, log folder; its cells are at `local_rank`."""

    rank: int
    local_rank: int
    pid: int
    folder: Path


class WorkerWatch:
    """The workers of one host; more may be added.

    `timeout` is in seconds. Workers `on_gpus` may have a `recorder`.
    """

    def __init__(
        self,
        cells: HostCells,
        workers: Sequence[LocalWorker],
        exits: ExitWatch,
        *,
        host: int,
        timeout: int,
        recorder: Recorder | None = None,
    ) -> None:
        self._cells, self.workers, self._exits = cells, list(workers), exits
        self.host, self._timeout, self._recorder = host, timeout, recorder
        self.on_gpus = recorder is not None
        self._looked = time.monotonic()
        self._signs = self._read_signs()
        # How long no worker has made progress; when this process was last frozen, and how long.
        self._still = 0.0
        self._froze, self._frozen = 0.0, 0.0

    def alarm(self) -> bool:
        """Return whether a worker failed, or all have stood still for too long."""
        self.look()
        # A finished worker must exit, too.
        running = any(self._end(worker) is None for worker in self.workers)
        return self.failed() or (running and self._still > self._timeout)

    def look(self) -> None:
        """Note which workers have made progress since the last look."""
        now, signs = time.monotonic(), self._read_signs()
        gap, self._looked = now - self._looked, now
        if gap > SEEN_SECONDS:
            self._froze, self._frozen = now, gap
        self._still = 0.0 if signs != self._signs else self._still + min(gap, SEEN_SECONDS)
        self._signs = signs

    def failed(self) -> bool:
        """Return whether a worker reported an error or ended too early."""
        for worker in self.workers:
            seen, end = self._cells.read(worker.local_rank), self._end(worker)
            if seen.error_time:
                return True
            if end is not None and (end.killed_by or seen.phase is not Phase.FINISHED):
                return True
        return False

    @property
    def frozen_s(self) -> float:
        """How long the whole job has stood still, if waits time out because of it now."""
        recent = time.monotonic() - self._froze < self._timeout
        return self._frozen if recent and self._frozen > self._timeout / 2 else 0.0

    def _read_signs(self) -> list[tuple[int, ...]]:
        """Return values that change as long as the workers make progress."""
        seen = [self._cells.read(worker.local_rank) for worker in self.workers]
        if not self._cells.asked_to_stop:
            return [(s.changed,) for s in seen]
        return [
            (s.changed,) if s.phase is Phase.SAVING else (s.step, s.phase, s.position) for s in seen
        ]

    def done(self) -> bool:
        """Return whether every worker has finished and exited."""
        return all(
            self._end(worker) is not None
            and self._cells.read(worker.local_rank).phase is Phase.FINISHED
            for worker in self.workers
        )

    def ended_by(self) -> int:
        """Return the signal that the finished workers obeyed, or 0."""
        return max(self._cells.read(worker.local_rank).ended_by for worker in self.workers)

    def examine(self) -> list[RankState]:
        """Return the state of each worker, including its stack. Takes some seconds."""
        self._settle()
        if self._recorder is not None:
            self._recorder.ask([w.rank for w in self.workers if self._end(w) is None])
        reachable = {
            worker.pid: worker.folder / STACK
            for worker in self.workers
            # A worker that is still starting has no handler yet: the signal would kill it.
            if self._cells.read(worker.local_rank).phase > Phase.STARTING
            and process_state(worker.pid) not in ("", "Z", "T", "t")
        }
        stacks = take_stacks(reachable)
        if self._recorder is not None:
            self._recorder.wait()
        return [self._state(worker, stacks) for worker in self.workers]

    def _settle(self) -> None:
        """Wait for more failures; if ranks have only lost a peer, wait for that peer to end."""
        time.sleep(SETTLE_SECONDS)
        until = time.monotonic() + ENDING_SECONDS
        while self._only_lost_peers() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    def _only_lost_peers(self) -> bool:
        failed = {self._cells.read(worker.local_rank).cause for worker in self.workers}
        none_ended = not any(self._end(worker) for worker in self.workers)
        return failed <= {Cause.NONE, Cause.LOST} and Cause.LOST in failed and none_ended

    def _end(self, worker: LocalWorker) -> Exit | None:
        return self._exits.exits.get(worker.rank)

    def _state(
        self, worker: LocalWorker, stacks: Mapping[int, tuple[StackFrame, ...]]
    ) -> RankState:
        seen, end = self._cells.read(worker.local_rank), self._end(worker)
        now = time.monotonic_ns()
        deaf = (now - seen.alive) / 1e9 if end is None and seen.alive else 0.0
        ended = 0.0 if end is None else _since_epoch(end.at)
        error_time, cause = _since_epoch(seen.error_time), seen.cause
        message = read_error(worker.folder / ERROR) or self._cells.message(worker.local_rank)
        if end is not None and end.killed_by == "SIGABRT" and not error_time:
            cause, message = nccl_watchdog_words(worker.folder / STDERR)
            error_time = ended if message else 0.0
        return RankState(
            rank=worker.rank,
            host=self.host,
            phase=seen.phase,
            step=seen.step,
            position=seen.position,
            changed=_since_epoch(seen.changed),
            error_time=error_time,
            cause=cause,
            message=message,
            end=end,
            ended=ended,
            process="" if end is not None else process_state(worker.pid),
            frames=stacks.get(worker.pid, ()),
            gpu=self.on_gpus,
            deaf=deaf if deaf > min(DEAF_SECONDS, self._timeout) else 0.0,
            moved_lately=now - seen.changed < self._timeout * 1e9,
        )


def supervise(
    watch: WorkerWatch,
    hosts: WatchedHosts,
    plan: Plan,
    *,
    meanwhile: Callable[[], bool],
    oom_killed: Callable[[], bool],
) -> None:
    """Watch until the workers of all hosts are done, or `meanwhile`, called often, returns True.

    Raises: RunFailed when a worker of any host raises, dies or hangs, or the run folder is lost;
    any error of `meanwhile`.
    """
    done = False
    while not done:
        time.sleep(POLL_SECONDS)
        if meanwhile():
            return
        done = watch.done() and hosts.all_done()
        is_failed = watch.alarm() or hosts.alarm()
        if not is_failed and hosts.lock is not None:
            # At the end, check the folder itself: a run that has just lost it has failed.
            is_failed = bool(hosts.lock.check() if done else hosts.lock.lost)
        if is_failed:
            raise hosts.failed_run(
                plan, watch.examine, oom_killed=oom_killed, frozen_s=watch.frozen_s
            )


def _since_epoch(monotonic_ns: int) -> float:
    """Return a time of the monotonic clock as seconds since the epoch; 0 stays 0."""
    return time.time() - (time.monotonic_ns() - monotonic_ns) / 1e9 if monotonic_ns else 0.0
