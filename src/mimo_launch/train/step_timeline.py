"""Measures when each action of a step ran, in the form in which `plan` draws its timeline.

Decides: which steps are measured and where their files go.
Relies on: `comm.step_clock` noting every slot; the clock of one host, which all share.
Leaves: drawing to `drawing.svg` and `drawing.trace`.

A transfer lasts from when its rank is ready to when it goes on.
"""

from pathlib import Path

import torch.distributed as dist

from mimo_launch.comm.host_objects import gather_objects
from mimo_launch.drawing.spans import Timeline, measured, timeline_json
from mimo_launch.drawing.svg import render_svg
from mimo_launch.drawing.trace import render_trace
from mimo_launch.train.session import RankSession

WARM_UP_STEPS = 2


class Profile:
    """Measures `steps` steps after a warm-up; a run with fewer steps measures its last ones."""

    def __init__(self, session: RankSession, folder: Path, steps: int) -> None:
        total = session.spec.train.steps
        first = min(WARM_UP_STEPS, max(0, total - steps))
        self._session, self._folder = session, folder
        self.steps = range(first, min(total, first + steps))

    def begin(self, step: int) -> None:
        """Start noting times if this step is to be measured.

        Ranks: collective over the world for such a step, so that all start together.
        """
        if step in self.steps:
            dist.barrier()
            self._session.executor.clock.start()

    def finish(self, step: int) -> None:
        """Write the step's timeline, drawing and trace on rank 0.

        Ranks: collective over the world for a measured step.
        """
        if step not in self.steps:
            return
        noted = self._session.executor.clock.stop()
        slots = [(what, start, end) for what, start, end in noted if isinstance(what, tuple)]
        by_rank = gather_objects(slots)
        if self._session.rank == 0:
            self._write(step + 1, measured(self._session.layout, by_rank))

    def _write(self, number: int, timeline: Timeline) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        name, path = self._session.spec.name, self._folder / f"step-{number}"
        drawing = render_svg(timeline, name=name, plan_hash=self._session.plan.identity)
        path.with_suffix(".json").write_text(timeline_json(timeline), encoding="utf-8")
        path.with_suffix(".svg").write_text(drawing, encoding="utf-8")
        trace = render_trace(timeline, name=name)
        path.with_suffix(".trace.json").write_text(trace, encoding="utf-8")
