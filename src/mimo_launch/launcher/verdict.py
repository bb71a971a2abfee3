"""The verdict on a failed run: which rank is to blame and why, from the facts about all ranks.

Decides: errors that a lost or late peer explains count only if no rank failed otherwise; of the
other failures the earliest counts. Without any failure, the rank that the others wait for is to
blame. Also what launchers of several hosts send each other about a failure, and its wire format.
Relies on: its arguments only; no process, no clock.
Leaves: collecting the facts to `watchdog` and `hosts`, words to `failure_report`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from mimo_launch.diag.exit_codes import ExitCode
from mimo_launch.launcher.worker_processes import Exit, StackFrame
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Cause, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """The facts about one rank when a run has to end. Times are seconds since the epoch.

    `error_time` is when it reported an error, or 0. `process` is the kernel's letter for the state
    of its process, empty if it has ended. `size` is the length of its program. `gpu` says that it
    uses a GPU, so its host may be ahead of the device. `deaf` is how many seconds none of its
    threads got the interpreter, or 0 if that is normal. `moved_lately` says that it showed signs of
    work within the timeout; it is still to blame if a peer waited too long for it, or if the run
    was asked to stop and its step does not end.
    """

    rank: int
    host: int = 0
    phase: Phase = Phase.STARTING
    step: int = 0
    position: int = 0
    size: int = 1
    changed: float = 0.0
    error_time: float = 0.0
    cause: Cause = Cause.NONE
    message: str = ""
    end: Exit | None = None
    ended: float = 0.0
    process: str = ""
    frames: tuple[StackFrame, ...] = field(default=())
    gpu: bool = False
    deaf: float = 0.0
    moved_lately: bool = False

    @property
    def progress(self) -> tuple[int, int, float]:
        """The progress of this rank: step, phase, share of its program."""
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
        """Whether the process ended too early without reporting an error."""
        if self.end is None or self.error_time:
            return False
        return bool(self.end.killed_by) or self.phase is not Phase.FINISHED

    @property
    def failed_at(self) -> float:
        """When this rank failed, or 0."""
        return self.error_time or (self.ended if self.died else 0.0)

    @property
    def blames_others(self) -> bool:
        """Whether this rank failed only because a peer was lost or late."""
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


# The cause is outside the run: a host or network failed, or the job was suspended.
_OUTSIDE = (FailureKind.ABSENT, FailureKind.LOST, FailureKind.FROZEN)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which rank is to blame (the lowest one of an absent host), and how it ended the run."""

    rank: int
    kind: FailureKind
    final: bool = False


def judge(
    states: Sequence[RankState], absent: Sequence[int] = (), *, frozen: bool = False
) -> Verdict:
    """Return the verdict on ranks after one failed, or none made progress for too long.

    `absent` are ranks on hosts that do not answer; `frozen` says that the whole job stood still
    long enough for every wait to time out.
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
    """Return the verdict when no rank failed on its own: ranks only wait or lost a peer."""
    running = [s for s in states if not s.error_time and s.phase is not Phase.FINISHED]
    stopped = [s for s in states if not s.error_time and s.stopped]
    deaf = [s for s in running if s.deaf]
    if stopped:
        return Verdict(_furthest_behind(stopped).rank, FailureKind.STOPPED)
    if deaf:  # Take the longest: on a busy machine others may seem deaf for a moment.
        return Verdict(max(deaf, key=lambda s: (s.deaf, -s.rank)).rank, FailureKind.STUCK)
    lost = [s for s in states if s.cause is Cause.LOST]
    late = [s for s in states if s.cause is Cause.TIMEOUT]
    if lost and not late:
        # No rank died or was late: the connection itself broke.
        first = min(lost, key=lambda s: (s.error_time, s.rank))
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
    """The facts about a failure in addition to the states of its ranks.

    `oom_killed` says that the kernel killed processes for lack of memory during the attempt,
    `frozen_s` for how many seconds the whole job stood still, `folder_lost` what happened to the
    run folder if it no longer belongs to this run.
    """

    oom_killed: bool = False
    frozen_s: float = 0.0
    folder_lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt ended.

    `absent` are the hosts that did not answer, `actions` the actions at each rank's position in its
    program.
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
        """Whether another attempt makes sense: no rank ended the run on purpose, no host left."""
        return not self.verdict.final and not self.absent

    @property
    def code(self) -> ExitCode:
        """The exit code: ELSEWHERE if something outside the run ended it."""
        blamed, kind = self.of(self.verdict.rank), self.verdict.kind
        end = None if blamed is None else blamed.end
        # A process that ended without an error or a status was most likely killed, too.
        killed = end is not None and (end.killed_by == "SIGKILL" or end.status is None)
        was_killed = kind is FailureKind.DIED and killed
        outside = kind in _OUTSIDE or (was_killed and not self.around.oom_killed)
        return ExitCode.ELSEWHERE if outside and not self.verdict.final else ExitCode.FAILED

    def of(self, rank: int) -> RankState | None:
        """Return the state of a rank; None if its host did not report it."""
        return next((state for state in self.states if state.rank == rank), None)


class RunFailed(Exception):
    """An attempt failed; `failure` has everything known about it.

    On hosts other than node 0, `failure` is what that host knows, and `words` tell the verdict of
    node 0; the exit `code` also comes from there.
    """

    def __init__(
        self,
        failure: Failure,
        words: str | None = None,
        restartable: bool | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(failure.verdict)
        self.failure, self.words = failure, words
        self.restartable = failure.restartable if restartable is None else restartable
        self.code = failure.code if code is None else ExitCode(code)


def diagnose(
    plan: Plan,
    states: Iterable[RankState],
    *,
    attempt: int,
    hosts: tuple[Host, ...],
    absent: tuple[Host, ...] = (),
    around: Circumstances | None = None,
) -> Failure:
    """Judge the ranks of all hosts that answered; a lost run folder overrides their verdict."""
    programs, around = plan.training, around or Circumstances()
    known = tuple(
        replace(state, size=len(programs[state.rank]))
        for state in sorted(states, key=lambda state: state.rank)
    )
    # Positions count the slots before the end of a step, with which the program begins.
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
    return [
        RankState(
            **{
                **raw,
                "phase": Phase(raw["phase"]),
                "cause": Cause(raw["cause"]),
                "end": None if raw["end"] is None else Exit(**raw["end"]),
                "frames": tuple(StackFrame(**frame) for frame in raw["frames"]),
            }
        )
        for raw in json.loads(text)
    ]
