"""Measures chosen steps of a run: timelines of all ranks; traces and memory of chosen ranks.

Decides: the places and names of the files; that the clocks of hosts, each of which counts from its
own start, are aligned at the barrier before a step.
Relies on: `comm.step_clock` for the times of actions; torch's profiler, and its record of GPU
allocations.
Leaves: the choice of steps and ranks to the command; pictures of timelines to `drawing`.

A transfer lasts from the time its rank is ready to the time it continues. Tracing slows a step, so
timelines of the same step show traced ranks slower than they are.
"""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from mimo_launch.comm.objects import gather_objects
from mimo_launch.comm.torch_internals import dump_memory, record_memory
from mimo_launch.diag.quantities import span_text
from mimo_launch.drawing.spans import Timeline, measured, timeline_json
from mimo_launch.drawing.svg import render_svg
from mimo_launch.drawing.trace import render_trace
from mimo_launch.runtime.progress import Phase
from mimo_launch.schedule.actions import Slot
from mimo_launch.train.events import Listener, ListenerFailed
from mimo_launch.train.rank_session import RankSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """A rank's report on a step: its slots with start and end, and why its trace is missing.

    `began` is when it left the barrier before the step. All times are by the clock of its host.
    """

    host: str
    began: float
    slots: list[tuple[Slot, float, float]]
    fault: str = ""


def on_one_clock(told: Sequence[RankTimes]) -> list[list[tuple[Slot, float, float]]]:
    """Return the slots of all ranks; time 0 on each host is when a rank first left the barrier."""
    zeros: dict[str, float] = {}
    for each in told:
        zeros[each.host] = min(zeros.get(each.host, each.began), each.began)
    return [
        [
            (slot, start - zeros[each.host], end - zeros[each.host])
            for slot, start, end in each.slots
        ]
        for each in told
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The ranks that trace torch; with `memory`, they also record allocations on a GPU."""

    ranks: frozenset[int] = frozenset()
    memory: bool = False


class Profiler:
    """Measures the steps of a range, counted from 0; `traced` ranks also trace torch.

    `emit` gets a warning, once, if files cannot be written; the run continues.
    """

    def __init__(
        self,
        session: RankSession,
        folder: Path,
        steps: range,
        traced: Traced = Traced(),
        emit: Listener = lambda event: None,
    ) -> None:
        self._session, self._folder, self.steps = session, folder, steps
        self._is_traced = session.rank in traced.ranks
        self._on_gpu, self._asks_memory = session.device.type == "cuda", traced.memory
        self._tracer: profile | None = None
        self._began = 0.0
        self._emit, self._has_failed = emit, False

    def tell_missing(self, done: int) -> None:
        """Warn about requested data that will be missing: steps already done, memory of hosts."""
        if self._session.rank:
            return
        if self._asks_memory and not self._on_gpu:
            self._warn("this run has no GPU", "what ranks allocate is not recorded")
        passed = range(self.steps.start, min(done, self.steps.stop))
        missing = [step + 1 for step in passed if not self._file(step, ".json").exists()]
        if missing:
            steps = span_text(missing[0], missing[-1])
            self._warn(f"the run continues after step {done}", f"steps {steps} are not measured")

    def begin(self, step: int) -> None:
        """Start to measure if this step is wanted.

        Ranks: collective over the world for a wanted step, so that all start together.
        """
        if step not in self.steps:
            return
        dist.barrier()
        self._began = time.perf_counter()
        if self._is_traced:
            activities = [ProfilerActivity.CPU]
            if self._on_gpu:
                activities.append(ProfilerActivity.CUDA)
            if self._on_gpu and self._asks_memory:
                record_memory()
            self._tracer = profile(activities=activities, acc_events=True)
            self._tracer.start()
        self._session.executor.clock.start()

    def finish(self, step: int) -> None:
        """Write the files of the step: its timeline on rank 0, its traces on traced ranks.

        Ranks: collective over the world for a measured step.
        """
        if step not in self.steps:
            return
        noted = self._session.executor.clock.stop()
        slots = [(what, start, end) for what, start, end in noted if isinstance(what, tuple)]
        self._session.progress.enter(Phase.WRITING)
        tracer, self._tracer = self._tracer, None
        fault = ""
        if tracer is not None:
            fault = self._attempt(step, lambda: self._write_trace(step, tracer))
        self._session.progress.enter(Phase.GATHERING)
        mine = RankTimes(host=platform.node(), began=self._began, slots=slots, fault=fault)
        told: list[RankTimes] = gather_objects(mine)
        if self._session.rank:
            return
        timeline = measured(self._session.layout, on_one_clock(told))
        faults = [each.fault for each in told]
        faults.append(self._attempt(step, lambda: self._write_timeline(step, timeline)))
        if any(faults) and not self._has_failed:
            self._has_failed = True
            self._warn(next(filter(None, faults)), "its files are incomplete; training continues")

    def _warn(self, reason: str, effect: str) -> None:
        self._emit(ListenerFailed(listener="profile", reason=reason, effect=effect))

    def _file(self, step: int, ending: str) -> Path:
        return self._folder / f"step-{step + 1}{ending}"

    def _attempt(self, step: int, write: Callable[[], None]) -> str:
        """Write files; return why they could not be written, or "".

        A rank that raised would leave the others waiting in `gather_objects`.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write()
        except Exception as error:  # Torch has no specific type for it.
            return f"step {step + 1}: {error}"
        return ""

    def _write_trace(self, step: int, tracer: profile) -> None:
        tracer.stop()
        of_rank = f"-rank-{self._session.rank}"
        tracer.export_chrome_trace(str(self._file(step, f"{of_rank}.torch.json.gz")))
        if self._on_gpu and self._asks_memory:
            dump_memory(self._file(step, f"{of_rank}.memory.pickle"))

    def _write_timeline(self, step: int, timeline: Timeline) -> None:
        name = self._session.spec.name
        drawing = render_svg(timeline, name=name, plan_hash=self._session.plan.identity)
        self._file(step, ".json").write_text(timeline_json(timeline), encoding="utf-8")
        self._file(step, ".svg").write_text(drawing, encoding="utf-8")
        trace = render_trace(timeline, name=name)
        self._file(step, ".trace.json").write_text(trace, encoding="utf-8")
