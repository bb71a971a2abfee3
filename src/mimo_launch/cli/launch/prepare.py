"""A request to run, and its preparation before workers start: plan, resources, run folder.

Decides: what a run prints before its workers start, and what prevents its start.
Relies on: `drawing`, `checks` and `launcher.host_resources` for the needs of a run,
`launcher.run_folder` for its folder.
Leaves: starting workers to `start`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.options import device_here
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.comm.world import DeviceKind
    from mimo_launch.drawing.rows import Report
    from mimo_launch.launcher.rank_tasks import Job, RankTask
    from mimo_launch.launcher.run_folder import RunFolder
    from mimo_launch.launcher.signals import StopRequest
    from mimo_launch.plan.plan import Plan
    from mimo_launch.spec.spec import Spec
    from mimo_launch.train.events import Event, Listener
    from mimo_launch.train.plan_watch import Forecast


# Entering it returns the listener that shows the events of an attempt.
Screen = AbstractContextManager["Listener"]


@frozen(kw_only=True)
class Start:
    """What to run and how, from the command line.

    `say` prints the plan and the output of shown ranks. `show` makes the screen of the run; its
    argument says whether the screen must print plain lines.
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
        """The spec of the plan."""
        return self.plan.spec

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.runs / self.spec.name

    @property
    def job(self) -> "Job":
        """The job for the workers."""
        from mimo_launch.launcher.rank_tasks import Job

        return Job(
            plan=self.plan, task=self.task, run=self.run, shown=self.shown, device=self.device
        )

    def on_host_of(self, num_workers: int) -> "Start":
        """Return this request with the device that a host chooses for its workers.

        Raises: typer.BadParameter if the host lacks what they need.
        """
        from mimo_launch.launcher.gpus import missing_kernels

        if self.device != "cpu":
            from mimo_launch.launcher.forking import import_for_workers

            import_for_workers()  # Before the child that counts GPUs, so that it inherits torch.
        device = device_here(self.spec, self.device, num_workers)
        for note in missing_kernels(self.spec, device):
            self.say(note)
        return replace(self, device=device, num_workers=num_workers)


def announce(request: Start) -> None:
    """Print the first line, before torch is imported: the spec and its plan."""
    from mimo_launch.diag.quantities import counted

    ranks = counted(request.plan.layout.world_size, "rank")
    request.say(f"{request.file}: plan {request.plan.identity}, {ranks}")


def prepare(
    request: "Start", console: Console, stop: "StopRequest | None" = None
) -> "tuple[Start, RunFolder] | int":
    """Plan the run, open and announce its folder; return an exit code if there is nothing to run.

    Otherwise return the request with the forecast of its plan, and the folder.

    Raises: Interrupted.
    """
    from mimo_launch.diag.quantities import named_ranks, sizes_text
    from mimo_launch.drawing.plan_report import report_json
    from mimo_launch.launcher.run_folder import open_run_folder
    from mimo_launch.launcher.run_lock import RunInUse

    code = _nothing_to_run(request, console)
    if code is not None:
        return code
    report = _planned(request, console)
    if isinstance(report, int):
        return report
    try:
        folder = open_run_folder(
            request.runs,
            request.spec,
            report_json(report),
            resume=request.resume,
            say=console.note,
            stop=stop,
        )
    except OSError as error:
        console.note(f"error: the run folder cannot be written: {error}")
        return 1
    except RunInUse as error:
        console.note(f"error: {error}")
        return 1
    code = _nothing_to_run(request, console)  # Again: a run that this one waited for may be done.
    if code is not None:
        folder.lock.close()
        return code
    for module in report.modules:
        placement = "" if module.placement is None else f", {module.placement}"
        ranks = named_ranks(range(module.first_rank, module.last_rank + 1))
        request.say(f"  {module.name}: {ranks}, {sizes_text(module.grid)}{placement}")
    if folder.moved:
        request.say(f"  an earlier run is now in {folder.moved}")
    request.say(f"  run folder: {folder.path}")
    if folder.saved:
        request.say(f"  resumes after step {folder.saved.step}; --no-resume starts anew")
    task = request.task.with_forecast(forecast_of(report, request.spec))
    return replace(request, task=task), folder


def forecast_of(report: "Report", spec: "Spec") -> "Forecast":
    """Return what a plan expects, as far as a run can tell whether it is true."""
    from mimo_launch.checks.memory import TOLERANCE
    from mimo_launch.estimate.device_constants import constants_for
    from mimo_launch.spec.values import GPUS
    from mimo_launch.train.plan_watch import Forecast

    fit, nodes = report.answer.fit, spec.nodes
    device = constants_for(nodes).rated_device
    gives_memory = nodes is not None and nodes.gpu_memory is not None
    return Forecast(
        gpus=next(((gpu.name, *gpu.devices) for gpu in GPUS.values() if gpu.name == device), ()),
        step_seconds=report.answer.step_seconds,
        needed_bytes=fit.needed_bytes,
        allocated_bytes=max(row.allocated_bytes for row in report.estimates.ranks),
        rank=fit.rank,
        step=fit.step,
        tight_below=int(fit.needed_bytes / (1 - TOLERANCE)),
        gpu_memory=fit.gpu_memory if gives_memory else None,
    )


@contextmanager
def screen_of(
    request: Start, folder: "RunFolder", console: Console, *, plain: bool
) -> Iterator["Listener"]:
    """Show the events of an attempt; once the run has its state, write spec and plan."""
    from mimo_launch.train.events import RunStarted

    with request.show(plain) as listener:

        def hear(event: "Event") -> None:
            if isinstance(event, RunStarted):
                try:
                    folder.write()
                except OSError as error:
                    console.note(f"warning: the spec was not written to {folder.path}: {error}")
            listener(event)

        yield hear


def _nothing_to_run(request: "Start", console: Console) -> int | None:
    """If nothing is left to do or the disk is too small, say so and return an exit code.

    Raises: typer.Exit.
    """
    from mimo_launch.cli.shared.lines import no_better
    from mimo_launch.launcher.host_resources import lacks_room
    from mimo_launch.launcher.run_folder import NothingToResume, resume_point
    from mimo_launch.train.best_evaluation import has_ended, owes_evaluation

    try:
        saved = resume_point(request.runs, request.spec, resume=request.resume)
    except NothingToResume as error:
        console.refuse(str(error), help_="--no-resume starts anew")
    if (
        saved is not None
        and has_ended(request.spec, saved.step, saved.best)
        and not owes_evaluation(request.spec, saved.step, saved.evaluated)
    ):
        is_early = saved.step < request.spec.train.steps
        more = f", {no_better(saved.best)}" if is_early and saved.best is not None else ""
        counts_epochs = request.spec.train.epochs is not None
        key = "train.epochs" if counts_epochs else "train.steps"
        key = "eval.stop_after" if is_early else key
        request.say(f"{request.run} is finished: {saved.step} steps are done{more}")
        request.say(f"  to continue, raise {key}; to start anew, give --no-resume")
        return 0
    if request.task.resumable and (lack := lacks_room(request.run, request.spec, saved)):
        console.note(f"error: {lack}")
        return 1
    return None


def _planned(request: "Start", console: Console) -> "Report | int":
    """Return the report of the plan, or an exit code if it would deadlock or not fit in memory."""
    from mimo_launch.checks.memory import memory_lacking
    from mimo_launch.cli.shared.readiness import show_deadlock
    from mimo_launch.drawing.plan_report import report_of
    from mimo_launch.estimate.estimates import Estimator
    from mimo_launch.launcher.host_resources import host_memory
    from mimo_launch.schedule.deadlock_proof import DeadlockError

    try:
        request.plan.prove()
        report = report_of(Estimator.of(request.plan))
    except DeadlockError as error:
        show_deadlock(error, request.file, console)
        return 2
    lacking = memory_lacking(
        report.estimates,
        range(request.num_workers),
        host_memory(),
        have_gpus=request.device != "cpu",
    )
    if lacking:
        console.note("\n".join(lacking))
        return 2
    return report
