"""What to run and how, as the command line says.

Decides: nothing.
Relies on: the types of `launcher`.
Leaves: running it to `start`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.cli.shared.options import device_here

if TYPE_CHECKING:
    from mimo_launch.comm.world import DeviceKind
    from mimo_launch.launcher.rank_tasks import Job, RankTask
    from mimo_launch.plan.plan import Plan
    from mimo_launch.spec.model import Spec
    from mimo_launch.train.events import Listener


# What shows the events of an attempt while it is entered.
Screen = AbstractContextManager["Listener"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What to run and how, as the command line says.

    `say` tells the plan and what shown ranks print, `show` makes what shows the run; it is given
    whether lines must do.
    """

    plan: "Plan"
    task: "RankTask"
    file: Path
    runs: Path
    say: Callable[[str], None]
    show: Callable[[bool], Screen]
    resume: bool | None = None
    max_restarts: int = 0
    shown: frozenset[int] = frozenset()
    device: "DeviceKind" = "auto"
    num_workers: int = 0

    @property
    def spec(self) -> "Spec":
        """What the plan is of."""
        return self.plan.spec

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.runs / self.spec.name

    @property
    def job(self) -> "Job":
        """What workers are told."""
        from mimo_launch.launcher.rank_tasks import Job

        return Job(
            plan=self.plan, task=self.task, run=self.run, shown=self.shown, device=self.device
        )

    def on_host_of(self, num_workers: int) -> "Start":
        """Return the same with the device that a host chooses for its workers.

        Raises: typer.BadParameter if it cannot be.
        """
        if self.device != "cpu":
            from mimo_launch.launcher.forking import import_for_workers

            import_for_workers()  # Now: else the child that counts GPUs would import torch as well.
        device = device_here(self.spec, self.device, num_workers)
        return replace(self, device=device, num_workers=num_workers)
