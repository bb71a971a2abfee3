"""Measures chosen steps of a run: timelines of all ranks; traces and memory of chosen ranks.

Decides: where the files go, and what each is named.
Relies on: `comm.step_clock` for when each action ran; torch's profiler, and its record of what is
allocated on a GPU.
Leaves: which steps and ranks are wanted to the command; pictures of timelines to `drawing`.

A transfer lasts from the time its rank is ready to the time it continues. Traces cost a step some
of its speed, so timelines of the same step show their ranks slower than they are.
"""

from pathlib import Path

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from mimo_launch.comm.collectives import gather_objects
from mimo_launch.comm.torch_internals import dump_memory, record_memory
from mimo_launch.drawing.spans import Timeline, measured, timeline_json
from mimo_launch.drawing.svg import render_svg
from mimo_launch.drawing.trace import render_trace
from mimo_launch.train.rank_session import RankSession


class Profiler:
    """Measures the steps of a range, counted from 0; `traced` ranks also trace what torch does."""

    def __init__(
        self, session: RankSession, folder: Path, steps: range, traced: frozenset[int] = frozenset()
    ) -> None:
        self._session, self._folder, self.steps = session, folder, steps
        self._is_traced = session.rank in traced
        self._tracer: profile | None = None

    def begin(self, step: int) -> None:
        """Start to measure if this step is wanted.

        Ranks: collective over the world for such a step, so that all start together.
        """
        if step not in self.steps:
            return
        dist.barrier()
        if self._is_traced:
            activities = [ProfilerActivity.CPU]
            if self._session.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
                record_memory()
            self._tracer = profile(activities=activities, acc_events=True)
            self._tracer.start()
        self._session.executor.clock.start()

    def finish(self, step: int) -> None:
        """Write the files of the step: of its timeline on rank 0, of its trace on traced ranks.

        Ranks: collective over the world for a measured step.
        """
        if step not in self.steps:
            return
        noted = self._session.executor.clock.stop()
        slots = [(what, start, end) for what, start, end in noted if isinstance(what, tuple)]
        path = self._folder / f"step-{step + 1}"
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._tracer is not None:
            self._write_trace(self._tracer, path)
        by_rank = gather_objects(slots)
        if self._session.rank == 0:
            self._write_timeline(path, measured(self._session.layout, by_rank))

    def _write_trace(self, tracer: profile, path: Path) -> None:
        tracer.stop()
        self._tracer = None
        of_rank = f"-rank-{self._session.rank}"
        tracer.export_chrome_trace(str(path.with_name(f"{path.name}{of_rank}.torch.json.gz")))
        if self._session.device.type == "cuda":
            dump_memory(path.with_name(f"{path.name}{of_rank}.memory.pickle"))

    def _write_timeline(self, path: Path, timeline: Timeline) -> None:
        name = self._session.spec.name
        drawing = render_svg(timeline, name=name, plan_hash=self._session.plan.identity)
        path.with_suffix(".json").write_text(timeline_json(timeline), encoding="utf-8")
        path.with_suffix(".svg").write_text(drawing, encoding="utf-8")
        trace = render_trace(timeline, name=name)
        path.with_suffix(".trace.json").write_text(trace, encoding="utf-8")
