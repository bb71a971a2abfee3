"""Compares a run with its plan: says when the largest step comes, and at its end what was measured.

Decides: what can be compared. Seconds of a step only on the GPU that the plan is for, without the
first two steps of a process, which also compile and connect; memory on any GPU, if the largest step
was among the steps of this process; on a CPU nothing, because plans are for GPUs.
Relies on: the events of rank 0; no torch.
Leaves: the forecast to the launcher, which has made the plan; words to `cli.shared.lines`.
"""

from dataclasses import dataclass
from statistics import median

from mimo_launch.train.events import (
    Event,
    LargestStepComes,
    Listener,
    PlanCompared,
    RunFinished,
    RunStarted,
    RunStopped,
    StepFinished,
)

_WARMUP, _LEAST_TIMED = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a plan expects: the seconds of a step on `gpus`, as torch names them, and bytes.

    The fullest rank needs `needed_bytes`, `allocated_bytes` of them in tensors. If `step` is known,
    which counts from 0, `rank` needs them in that step. A GPU with less than `tight_below` bytes
    has little room for them. Ranks may have no more than `gpu_memory` bytes, if the spec says so.
    """

    gpus: tuple[str, ...]
    step_seconds: float
    needed_bytes: int
    allocated_bytes: int
    rank: int
    step: int | None
    tight_below: int
    gpu_memory: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The GPU of rank 0: its name and bytes; metrics of a step are read `steps_late`."""

    gpu: str
    memory: int
    steps_late: int


class PlanWatch:
    """A listener that passes the events of rank 0 on, and adds what the plan says to them."""

    def __init__(self, forecast: Forecast, machine: Machine, emit: Listener) -> None:
        self._forecast, self._machine, self._emit = forecast, machine, emit
        self._first, self._is_told = 0, False
        self._seconds: list[float] = []

    def __call__(self, event: Event) -> None:
        """Pass an event on, before or after what the plan says."""
        if isinstance(event, RunFinished | RunStopped):
            done = event.steps if isinstance(event, RunFinished) else event.step
            self._compare(done, event.peak_memory)
        self._emit(event)
        if isinstance(event, RunStarted):
            self._first = event.first_step
            self._announce(event.first_step)
        elif isinstance(event, StepFinished):
            if event.usage is not None:
                self._seconds.append(event.usage.step_s)
            self._announce(event.step)

    def _announce(self, done: int) -> None:
        """Say that the largest step comes, if it is tight and may be the next one to start."""
        plan, has = self._forecast, self._machine.memory
        limit = has if plan.gpu_memory is None else min(has, plan.gpu_memory)
        if plan.step is None or limit >= plan.tight_below or self._is_told:
            return
        if self._first <= plan.step <= done + self._machine.steps_late:
            self._is_told = True
            self._emit(
                LargestStepComes(
                    step=plan.step + 1,
                    rank=plan.rank,
                    needed_bytes=plan.needed_bytes,
                    gpu_memory=limit,
                )
            )

    def _compare(self, done: int, peak_memory: int) -> None:
        plan, timed = self._forecast, self._seconds[_WARMUP:]
        seconds = memory = None
        if self._machine.gpu in plan.gpus and len(timed) >= _LEAST_TIMED:
            seconds = plan.step_seconds, median(timed)
        if self._first < done and (plan.step is None or self._first <= plan.step < done):
            memory = plan.allocated_bytes, peak_memory
        if seconds is None and memory is None:
            return
        self._emit(
            PlanCompared(
                step=done,
                estimated_step_s=None if seconds is None else seconds[0],
                measured_step_s=None if seconds is None else seconds[1],
                estimated_memory=None if memory is None else memory[0],
                measured_memory=None if memory is None else memory[1],
            )
        )
