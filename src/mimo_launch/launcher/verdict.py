"""Which rank is blamed for a failed run, and why: from what is known of all ranks.

Decides: errors that a lost or late peer explains count only if no rank has another kind of failure;
among the others the earliest counts. Without any, the rank that the others wait for is to blame.
Also what launchers of several hosts tell each other about a failure, and its form on the wire.
Relies on: nothing but its arguments; no process, no clock.
Leaves: collecting the facts to `watchdog` and `hosts`, words to `failure_report`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from mimo_launch.launcher.worker_processes import Exit, Frame
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Cause, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """What is known of one rank when a run has to end. Times are seconds since the epoch.

    `process` is the kernel's letter for its state, empty if it has ended. `size` is the length of
    its program. `gpu` says that it works on one, which its host runs ahead of; `deaf` is for how
    many seconds none of its threads got the interpreter, if that is long; `beats` says that it gave
    signs of work, though it got nowhere.
    """

    rank: int
    host: int = 0
    phase: Phase = Phase.STARTING
    step: int = 0
    position: int = 0
    size: int = 1
    changed: float = 0.0
    failed: float = 0.0
    cause: Cause = Cause.NONE
    message: str = ""
    end: Exit | None = None
    ended: float = 0.0
    process: str = ""
    frames: tuple[Frame, ...] = field(default=())
    gpu: bool = False
    deaf: float = 0.0
    beats: bool = False

    @property
    def progress(self) -> tuple[int, int, float]:
        """How far this rank has come: step, phase, share of its program."""
        return self.step, self.phase, self.position / max(1, self.size)

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped, by a signal or a debugger."""
        return self.process in ("T", "t")

    @property
    def waits(self) -> bool:
        """Whether this rank is inside communication with others."""
        return bool(self.frames) and self.frames[0].communicates

    @property
    def died(self) -> bool:
        """Whether the process has ended before its time without saying why."""
        if self.end is None or self.failed:
            return False
        clean = self.end.status == 0 and not self.end.killed_by
        return not (clean and self.phase is Phase.FINISHED)

    @property
    def failed_at(self) -> float:
        """When this rank failed, or 0."""
        return self.failed or (self.ended if self.died else 0.0)

    @property
    def blames_others(self) -> bool:
        """Whether all that is wrong with this rank is that a peer was lost or late."""
        return self.cause in (Cause.LOST, Cause.TIMEOUT)


class FailureKind(StrEnum):
    """How the rank to blame ended the run."""

    RAISED = "raised"
    DIED = "died"
    STOPPED = "stopped"
    STUCK = "stuck"
    BEHIND = "behind"
    LOST = "lost"
    LINGERS = "lingers"
    ABSENT = "absent"
    NO_FOLDER = "no folder"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which rank is to blame (the lowest one of an absent host), and how it ended the run."""

    rank: int
    kind: FailureKind
    final: bool = False


def judge(
    states: Sequence[RankState], absent: Sequence[int] = (), *, frozen: bool = False
) -> Verdict:
    """Return the verdict on ranks of which at least one failed, or none has moved for too long.

    `absent` are ranks whose host does not answer; `frozen` says that the job as a whole stood still
    for long enough to make every wait time out.
    """
    own = [s for s in states if s.failed_at and not s.blames_others]
    if own:
        first = min(own, key=lambda s: (s.failed_at, s.rank))
        kind = FailureKind.DIED if first.died else FailureKind.RAISED
        return Verdict(first.rank, kind, final=any(s.cause is Cause.FINAL for s in own))
    if absent:
        return Verdict(min(absent), FailureKind.ABSENT)
    if frozen and any(s.blames_others for s in states):
        return Verdict(min(s.rank for s in states), FailureKind.FROZEN)
    return _awaited(states)


def _awaited(states: Sequence[RankState]) -> Verdict:
    """Return the verdict on ranks that have nothing worse to report than waiting for others."""
    running = [s for s in states if not s.failed and s.phase is not Phase.FINISHED]
    stopped = [s for s in states if not s.failed and s.stopped]
    deaf = [s for s in running if s.deaf]
    if stopped:
        return Verdict(_furthest_behind(stopped).rank, FailureKind.STOPPED)
    if deaf:  # On a machine that is too busy others may seem so for a moment.
        return Verdict(max(deaf, key=lambda s: (s.deaf, -s.rank)).rank, FailureKind.STUCK)
    lost = [s for s in states if s.cause is Cause.LOST]
    late = [s for s in states if s.cause is Cause.TIMEOUT]
    if lost and not late:
        # Nobody died, nobody was late: the connection itself broke.
        first = min(lost, key=lambda s: (s.failed, s.rank))
        return Verdict(first.rank, FailureKind.LOST)
    busy = [s for s in running if not s.waits and s.phase > Phase.STARTING]
    starting = [s for s in running if s.phase is Phase.STARTING]
    if busy or starting:
        return Verdict(_furthest_behind(starting or busy).rank, FailureKind.STUCK)
    lingering = [s for s in states if s.phase is Phase.FINISHED and s.end is None]
    kind = FailureKind.LINGERS if lingering and not running else FailureKind.BEHIND
    return Verdict(_furthest_behind(running or lingering or states).rank, kind)


def _furthest_behind(states: Iterable[RankState]) -> RankState:
    return min(states, key=lambda s: (s.progress, s.changed, s.rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine of a job: its number, its name, its ranks."""

    node: int
    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What else is known of a failure, besides what each rank was doing.

    `oom_killed` says that the kernel ended processes for want of memory meanwhile, `frozen_s` for
    how many seconds the whole job stood still, `folder_lost` what became of the run folder if it is
    no longer this run's.
    """

    oom_killed: bool = False
    frozen_s: float = 0.0
    folder_lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt at a plan ended.

    `absent` are hosts that did not answer, `actions` what each rank's program had at its position.
    """

    plan: Plan
    verdict: Verdict
    states: tuple[RankState, ...]
    attempt: int
    hosts: tuple[Host, ...]
    absent: tuple[Host, ...]
    actions: dict[int, str]
    around: Circumstances

    @property
    def restartable(self) -> bool:
        """Whether another attempt makes sense: nobody ended the run on purpose, no host is gone."""
        return (
            not self.verdict.final
            and self.verdict.kind is not FailureKind.ABSENT
            and not self.absent
        )

    def of(self, rank: int) -> RankState | None:
        """Return what is known of a rank."""
        return next((state for state in self.states if state.rank == rank), None)


class RunFailed(Exception):
    """An attempt failed; this is the whole account of it.

    On all hosts but node 0 it is what this host knows, and `told` is node 0's verdict in words.
    """

    def __init__(
        self, failure: Failure, told: str | None = None, restartable: bool | None = None
    ) -> None:
        super().__init__(failure.verdict)
        self.failure, self.told = failure, told
        self.restartable = failure.restartable if restartable is None else restartable


def diagnose(
    plan: Plan,
    states: Iterable[RankState],
    *,
    attempt: int,
    hosts: tuple[Host, ...],
    absent: tuple[Host, ...] = (),
    around: Circumstances | None = None,
) -> Failure:
    """Judge the ranks of all hosts that answered, unless they have lost their folder."""
    programs, around = plan.training, around or Circumstances()
    known = tuple(
        replace(state, size=len(programs[state.rank]))
        for state in sorted(states, key=lambda state: state.rank)
    )
    actions = {
        state.rank: " + ".join(str(action) for action in programs[state.rank][state.position])
        for state in known
        if state.phase is Phase.PROGRAM and state.position < state.size
    }
    gone = [rank for host in absent for rank in host.ranks]
    verdict = judge(known, gone, frozen=bool(around.frozen_s))
    return Failure(
        plan=plan,
        verdict=Verdict(0, FailureKind.NO_FOLDER, final=True) if around.folder_lost else verdict,
        states=known,
        attempt=attempt,
        hosts=hosts,
        absent=absent,
        actions=actions,
        around=around,
    )


def to_json(states: Iterable[RankState]) -> str:
    """Return states as text for another host."""
    return json.dumps([asdict(state) for state in states])


def from_json(text: str) -> list[RankState]:
    """Return the states that `to_json` wrote."""
    return [_state(raw) for raw in json.loads(text)]


def _state(raw: dict[str, Any]) -> RankState:
    return RankState(
        **{
            **raw,
            "phase": Phase(raw["phase"]),
            "cause": Cause(raw["cause"]),
            "end": None if raw["end"] is None else Exit(**raw["end"]),
            "frames": tuple(Frame(**frame) for frame in raw["frames"]),
        }
    )
