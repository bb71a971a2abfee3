"""`mimo-launch train`: validate, plan, start the workers (or join them), show progress.

Decides: the options; what is printed before a run; where a run starts.
Relies on: `layout.checks` and `plan` for everything that can be known before a process starts.
Leaves: attempts and exit codes to `attempts`, ranks that something else started to `join`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.console import Console, console_of

if TYPE_CHECKING:
    from mimo_launch.launcher.joining import Joined
    from mimo_launch.launcher.run_folder import RunFolder
    from mimo_launch.plan.rows import Report
    from mimo_launch.spec.model import Spec

HELP = """
\b
Examples:
  mimo-launch train topologies/quickstart.yaml --nproc 8
  mimo-launch train spec.yaml --steps 20 --set optimizer.lr=1e-3
  mimo-launch train spec.yaml --runs /scratch/me/runs
  mimo-launch train spec.yaml --max-restarts 3
  mimo-launch train spec.yaml --steps 5 --profile 2
  mimo-launch train spec.yaml --no-resume
  torchrun --nproc-per-node 8 -m mimo_launch train spec.yaml

Validate and plan the spec, start one worker per rank on this machine and train. Under torchrun
the process joins as the rank it is given. The run folder holds the resolved spec, the plan,
metrics.jsonl and the workers' logs. A run whose folder has a complete checkpoint goes on after it.
The first Ctrl-C or SIGTERM saves a checkpoint after the current step, the second stops at once.
Exits with 0 when all steps are done, 1 when the run failed, 2 when the spec is wrong, 130 or 143
when interrupted.
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
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--no-resume",
            help="Go on from the newest complete checkpoint, or start anew; by default go on if "
            "there is one.",
        ),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Times to start again after a failure.")
    ] = 0,
    console_ranks: Annotated[
        str | None,
        typer.Option(metavar="RANKS", help="Show the output of these ranks too, e.g. 0,5-7."),
    ] = None,
) -> None:
    """Train a spec, one worker per rank."""
    from mimo_launch.cli.findings import show_findings
    from mimo_launch.launcher.joining import torchrun_rank
    from mimo_launch.layout.checks.entry import load_and_check

    console = console_of(ctx)
    shown = _ranks(console_ranks)
    settings = [*(overrides or ()), *([f"train.steps={steps}"] if steps is not None else [])]
    joined = torchrun_rank()
    checked = load_and_check(file, settings, nproc if joined is None else joined.world_size)
    if joined is None or joined.rank == 0:
        show_findings(checked, console)
    if checked.spec is None:
        raise typer.Exit(2)
    start = Start(
        spec=checked.spec,
        file=file,
        runs=runs,
        resume=resume,
        profile=profile,
        max_restarts=max_restarts,
        shown=shown,
    )
    raise typer.Exit(_run(start, console, joined))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What to train and how, as the command line says."""

    spec: "Spec"
    file: Path
    runs: Path
    resume: bool | None
    profile: int
    max_restarts: int
    shown: frozenset[int]


def _ranks(text: str | None) -> frozenset[int]:
    from mimo_launch.launcher.logs import parse_ranks

    if text is None:
        return frozenset()
    try:
        return parse_ranks(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--console-ranks") from error


def _run(start: Start, console: Console, joined: "Joined | None") -> int:
    """Join as a rank, or open the run folder and start workers."""
    from mimo_launch.cli.join import join
    from mimo_launch.launcher.run_folder import NothingToResume, goes_on

    spec = start.spec
    try:
        saved = goes_on(start.runs, spec, resume=start.resume)
    except NothingToResume as error:
        raise typer.BadParameter(str(error), param_hint="--resume") from error
    quiet = joined is not None and joined.rank > 0
    if saved is not None and saved.step >= spec.train.steps:
        if not quiet:
            console.answer(f"{saved.path.parent.parent} is finished: {saved.step} steps are done")
            console.answer("  to go on, raise train.steps; to start anew, give --no-resume")
        return 0
    if joined is not None and quiet:
        return join(spec, start.runs / spec.name, console, start.profile)
    folder = _open(start, console)
    if isinstance(folder, int):
        return folder
    if joined is not None:
        return join(spec, folder, console, start.profile)
    return _start(start, folder, console)


def _open(start: Start, console: Console) -> Path | int:
    """Plan the run, open its folder and say so; return an exit code if that is not possible."""
    from mimo_launch.cli.deadlock import show_deadlock
    from mimo_launch.launcher.run_folder import open_run_folder
    from mimo_launch.plan.as_json import report_json
    from mimo_launch.plan.report import build_report
    from mimo_launch.plan.timeline import DeadlockError

    try:
        report = build_report(start.spec)
    except DeadlockError as error:
        show_deadlock(error, start.file, console)
        return 2
    try:
        folder = open_run_folder(start.runs, start.spec, report_json(report), resume=start.resume)
    except OSError as error:
        console.note(f"error: the run folder cannot be written: {error}")
        return 1
    for line in _summary(report, start.file, folder):
        console.answer(line)
    return folder.path


def _summary(report: "Report", file: Path, folder: "RunFolder") -> list[str]:
    """Return the plan in a few lines."""
    from mimo_launch.plan.words import sizes_text, span_text

    header = report.header
    lines = [f"{file}: plan {header.plan_hash}, {header.world_size} ranks"]
    for module in report.modules:
        placement = "" if module.placement is None else f", {module.placement}"
        ranks = span_text(module.first_rank, module.last_rank)
        lines.append(f"  {module.name}: ranks {ranks}, {sizes_text(module.grid)}{placement}")
    lines += [f"  an earlier run is now in {folder.moved}"] if folder.moved else []
    lines.append(f"  run folder: {folder.path}")
    if folder.saved:
        lines.append(f"  goes on after step {folder.saved.step}; --no-resume starts anew")
    return lines


def _start(start: Start, folder: Path, console: Console) -> int:
    """Start workers on this host."""
    from mimo_launch.cli.attempts import run_attempts
    from mimo_launch.launcher.entry import Job
    from mimo_launch.launcher.hosts import OneHost
    from mimo_launch.layout.layout import world_size

    job = Job(spec=start.spec, run=folder, profile_steps=start.profile, shown=start.shown)
    hosts = OneHost(world_size(start.spec), folder)
    return run_attempts(job, hosts, console, max_restarts=start.max_restarts)
