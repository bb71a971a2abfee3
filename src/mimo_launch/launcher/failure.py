"""A failed attempt as a value: the verdict, and all that is known of every rank.

Decides: what launchers of several hosts tell each other about a failure, and its form on the wire.
Relies on: `verdict` for the verdict.
Leaves: words to `failure_report`.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from mimo_launch.launcher.process_exits import Exit
from mimo_launch.launcher.stacks import Frame
from mimo_launch.launcher.verdict import Kind, RankState, Verdict, judge
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Cause, Phase
from mimo_launch.spec.model import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine of a job: its number, its name, its ranks."""

    node: int
    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt ended.

    `absent` are hosts that did not answer, `actions` what each rank's program had at its position,
    `oom_killed` says that the kernel ended processes for want of memory meanwhile, `frozen_s` for
    how many seconds the whole job stood still, `folder_lost` what became of the run folder if it is
    no longer this run's.
    """

    verdict: Verdict
    states: tuple[RankState, ...]
    attempt: int
    timeout: int
    hosts: tuple[Host, ...]
    absent: tuple[Host, ...]
    actions: dict[int, str]
    oom_killed: bool
    frozen_s: float = 0.0
    folder_lost: str = ""

    @property
    def restartable(self) -> bool:
        """Whether another attempt makes sense: nobody ended the run on purpose, no host is gone."""
        return not self.verdict.final and self.verdict.kind is not Kind.ABSENT and not self.absent

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
    spec: Spec,
    states: Iterable[RankState],
    *,
    attempt: int,
    hosts: tuple[Host, ...],
    absent: tuple[Host, ...] = (),
    oom_killed: bool = False,
    frozen_s: float = 0.0,
    folder_lost: str = "",
) -> Failure:
    """Judge the ranks of all hosts that answered, unless they have lost their folder."""
    programs = Plan.of(spec).training
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
    verdict = judge(known, gone, frozen=bool(frozen_s))
    return Failure(
        verdict=Verdict(0, Kind.NO_FOLDER, final=True) if folder_lost else verdict,
        states=known,
        attempt=attempt,
        timeout=spec.train.timeout,
        hosts=hosts,
        absent=absent,
        actions=actions,
        oom_killed=oom_killed,
        frozen_s=frozen_s,
        folder_lost=folder_lost,
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
