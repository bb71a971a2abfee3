"""`mimo-launch train`: validate, plan, start the workers (or join them), show progress.

Decides: what is printed before and after a run, and the exit code.
Relies on: `layout.checks` and `plan` for everything that can be known before a process starts.
Leaves: the run itself to `launcher`.
"""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.console import Console, console_of

if TYPE_CHECKING:
    from mimo_launch.launcher.local import WorkerFailure
    from mimo_launch.plan.rows import Report
    from mimo_launch.spec.model import Spec

HELP = """
\b
Examples:
  mimo-launch train topologies/quickstart.yaml --nproc 8
  mimo-launch train spec.yaml --steps 20 --set optimizer.lr=1e-3
  mimo-launch train spec.yaml --runs /scratch/me/runs
  mimo-launch train spec.yaml --steps 5 --profile 2
  torchrun --nproc-per-node 8 -m mimo_launch train spec.yaml

Validate and plan the spec, start one worker per rank on this machine and train. Under torchrun
the process joins as the rank it is given. The run folder holds the resolved spec, the plan,
metrics.jsonl and the workers' logs. Exits with 0 when all steps are done, 1 when the run failed,
2 when the spec is wrong, 130 or 143 when interrupted.
"""


def train(
    ctx: typer.Context,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Spec to train.")],
    nproc: Annotated[
        int | None,
        typer.Option(min=1, help="Workers to start; the spec's number of ranks by default."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Replace one value; may be repeated."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to run; short for --set train.steps=N.")
    ] = None,
    profile: Annotated[
        int,
        typer.Option(
            min=0, metavar="STEPS", help="Measure this many steps and draw their timelines."
        ),
    ] = 0,
    runs: Annotated[Path, typer.Option(help="Folder that holds run folders.")] = Path("runs"),
) -> None:
    """Train a spec, one worker per rank."""
    from mimo_launch.cli.findings import show_findings
    from mimo_launch.launcher.joining import joined_rank, joined_world
    from mimo_launch.layout.checks.entry import load_and_check

    console = console_of(ctx)
    rank = joined_rank()
    settings = [*(overrides or ()), *([f"train.steps={steps}"] if steps is not None else [])]
    checked = load_and_check(file, settings, nproc if rank is None else joined_world())
    if not rank:
        show_findings(checked, console)
    if checked.spec is None:
        raise typer.Exit(2)
    raise typer.Exit(_run(checked.spec, file, runs, console, rank=rank, profile=profile))


def _run(
    spec: "Spec", file: Path, runs: Path, console: Console, *, rank: int | None, profile: int
) -> int:
    from mimo_launch.cli.deadlock import show_deadlock
    from mimo_launch.plan.as_json import report_json
    from mimo_launch.plan.report import build_report
    from mimo_launch.plan.timeline import DeadlockError

    if rank:
        return _join(spec, runs / spec.name, console, profile)
    try:
        report = build_report(spec)
    except DeadlockError as error:
        show_deadlock(error, file, console)
        return 2
    from mimo_launch.launcher.run_folder import open_run_folder

    try:
        folder, moved = open_run_folder(runs, spec, report_json(report))
    except OSError as error:
        console.note(f"error: the run folder cannot be written: {error}")
        return 1
    for line in _summary(report, file, folder, moved):
        console.answer(line)
    if rank == 0:
        return _join(spec, folder, console, profile)
    return _start(spec, folder, console, profile)


def _summary(report: "Report", file: Path, folder: Path, moved: Path | None) -> list[str]:
    """Return the plan in a few lines."""
    from mimo_launch.plan.words import sizes_text, span_text

    header = report.header
    lines = [f"{file}: plan {header.plan_hash}, {header.world_size} ranks"]
    for module in report.modules:
        placement = "" if module.placement is None else f", {module.placement}"
        ranks = span_text(module.first_rank, module.last_rank)
        lines.append(f"  {module.name}: ranks {ranks}, {sizes_text(module.grid)}{placement}")
    lines += [f"  an earlier run is now in {moved}"] if moved else []
    return [*lines, f"  run folder: {folder}"]


def _join(spec: "Spec", folder: Path, console: Console, profile: int) -> int:
    """Be one of the ranks that torchrun started; what goes wrong is this rank's report."""
    import os
    import traceback

    from rich.console import Console as RichConsole

    from mimo_launch.cli.progress import PlainProgress
    from mimo_launch.launcher.worker import run_worker

    try:
        run_worker(spec, folder, (PlainProgress(RichConsole()),), profile_steps=profile)
    except Exception:
        console.note(f"error: rank {os.environ['RANK']} failed\n{traceback.format_exc()}")
        return 1
    return 0


def _start(spec: "Spec", folder: Path, console: Console, profile: int) -> int:
    """Start the workers and show what they report."""
    from rich.console import Console as RichConsole

    from mimo_launch.cli.progress import progress_for
    from mimo_launch.launcher.local import Interrupted, WorkerFailure, launch
    from mimo_launch.layout.layout import world_size

    try:
        colors = console.colors(sys.stdout)
        with progress_for(RichConsole(no_color=not colors)) as progress:
            launch(spec, folder, world_size(spec), progress, profile_steps=profile)
    except WorkerFailure as failure:
        for line in _failure_lines(failure, spec, folder):
            console.note(line)
        return 1
    except Interrupted as interrupted:
        console.note(f"interrupted by {signal.Signals(interrupted.signal).name}")
        return 128 + interrupted.signal
    return 0


def _failure_lines(failure: "WorkerFailure", spec: "Spec", folder: Path) -> list[str]:
    """Return one report for the rank that failed first."""
    from mimo_launch.layout.layout import build_layout

    layout = build_layout(spec)
    places = [
        f"{m.name} " + " ".join(f"{a} {i}" for a, i in m.grid.coords_of(failure.rank).items())
        for m in layout.modules_of(failure.rank)
    ]
    return [
        f"error: rank {failure.rank} stopped first ({'; '.join(places) or 'idle rank'})",
        f"   = said:  {failure.message}",
        f"   = files: {failure.logs} (one folder per rank), {folder / 'metrics.jsonl'}",
    ]
