"""`mimo-launch plan`: shows what every rank will do, and starts nothing.

Decides: what goes to stdout (tables or JSON), which files are written, and the exit code.
Relies on: `checks.load_and_check` for findings, `drawing.plan_report` for the facts.
Leaves: executing the plan to `train`.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.shared.console import console_of, table_width
from mimo_launch.cli.shared.options import (
    CalibrationFile,
    HostCount,
    HostProcesses,
    Overrides,
    constants_of,
    world_of,
)
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.drawing.rows import RankReport, Report
    from mimo_launch.estimate.estimates import Estimator

HELP = """
\b
Examples:
  mimo-launch plan spec.yaml
  mimo-launch plan spec.yaml --tokens 1T
  mimo-launch plan spec.yaml --full
  mimo-launch plan spec.yaml --rank 3
  mimo-launch plan spec.yaml --set schedule.microbatches=8
  mimo-launch plan spec.yaml --apply 1 -o new.yaml
  mimo-launch plan spec.yaml --json > plan.json
  mimo-launch plan spec.yaml --html plan.html
  mimo-launch plan spec.yaml --timeline step.svg --trace step.json
  mimo-launch plan spec.yaml --calibration h100.json

Say whether a job fits, how fast it is, where its time goes and what would make it faster: other
layouts are planned, too. --full shows what every rank will do: coordinates, groups, stages, bridges
and the schedule in model time. Starts nothing and needs no GPU.
Exits with 0, with 2 when the spec has a mistake or the job does not fit, unless --apply writes one
that does, or with 1 when a file cannot be written.
"""


@frozen(kw_only=True)
class PlanCommand:
    """Show what every rank will do; start nothing."""

    ctx: typer.Context
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Spec to plan.")]
    rank: Annotated[
        int | None, typer.Option(min=0, help="Show everything about this rank instead.")
    ] = None
    overrides: Overrides = None
    nproc: HostProcesses = None
    nnodes: HostCount = 1
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False
    timeline: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the step, or that of --rank.")
    ] = None
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the step for ui.perfetto.dev.")
    ] = None
    trace_ranks: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Ranks in the trace, e.g. 0,5-7, or all of them: all; default: one of each kind, "
            "or --rank.",
        ),
    ] = None
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw the whole plan as one page.")
    ] = None
    model_units: Annotated[
        bool,
        typer.Option(
            "--model-units", help="Draw files in units of a microbatch, not in estimated seconds."
        ),
    ] = False
    calibration: CalibrationFile = None
    full: Annotated[
        bool, typer.Option("--full", help="Show all tables: groups, stages, schedule, memory.")
    ] = False
    tokens: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Tokens to train, such as 1T: says how many days."),
    ] = None
    worst: Annotated[
        bool, typer.Option("--worst", help="Take every sample to be the largest, not the mean.")
    ] = False
    advice: Annotated[
        bool, typer.Option("--advice/--no-advice", help="Plan changes, to find better ones.")
    ] = True
    apply: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Write the spec with change N to --output."),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.yaml", help="The file for --apply."),
    ] = None

    def __call__(self) -> None:
        """Write the files and answer. Raises: typer.Exit; typer.BadParameter."""
        from mimo_launch.checks.load_and_check import load_and_check
        from mimo_launch.cli.plan_files import Drawings, check_targets, write_change, write_drawings
        from mimo_launch.cli.shared.readiness import show_deadlock, show_findings
        from mimo_launch.drawing.plan_report import json_parts
        from mimo_launch.estimate.estimates import Estimator
        from mimo_launch.plan.plan import Plan
        from mimo_launch.schedule.deadlock_proof import DeadlockError

        console = console_of(self.ctx)
        for option, given in {"--full": self.full, "--tokens": self.tokens is not None}.items():
            if given and self.rank is not None:
                message = "--rank shows a rank alone; leave out one of them"
                raise typer.BadParameter(message, param_hint=option)
        wanted = Drawings(
            svg=self.timeline,
            trace=self.trace,
            page=self.html,
            spec=self.output,
            change=self.apply,
            rank=self.rank,
            ranks=self.trace_ranks,
            model_units=self.model_units,
        )
        check_targets(self.file, wanted, console, seeks=self.advice)
        tokens = None if self.tokens is None else _count(self.tokens)
        constants = constants_of(self.calibration)
        world = world_of(self.nproc, self.nnodes)
        checked = load_and_check(
            self.file, self.overrides or (), world, constants=constants, only_plans=True
        )
        show_findings(checked, console)
        spec, fits = checked.spec or checked.unfit, checked.spec is not None
        if spec is None:
            raise typer.Exit(2)
        estimator = checked.estimator
        if estimator is None or self.worst:
            plan = Plan.of(spec) if estimator is None else estimator.plan
            estimator = Estimator.of(plan, constants, worst=self.worst)
        try:
            report = self._report(estimator, tokens, fits=fits)
        except DeadlockError as error:
            show_deadlock(error, self.file, console)
            raise typer.Exit(2) from None
        write_drawings(estimator, report, console, wanted)
        is_written = write_change(self.file, self.overrides or (), report, console, wanted)
        if self.as_json:
            console.answer_in_parts(json_parts(report))
        else:
            from mimo_launch.cli.plan_screen import parts_of
            from mimo_launch.cli.shared.styled import printed

            parts = parts_of(report, table_width(), full=self.full, fits=fits)
            colors = console.colors(sys.stdout)
            console.answer(printed(parts, table_width(), colors=colors), painted=colors)
        # A spec that does not fit is an error, unless a written change fixes it.
        if not fits and not is_written:
            raise typer.Exit(2)

    def _report(
        self, estimator: "Estimator", tokens: int | None, *, fits: bool
    ) -> "Report | RankReport":
        """Return the report of all ranks, or of one. Raises: typer.BadParameter; DeadlockError."""
        from mimo_launch.drawing.plan_report import rank_report_of, report_of

        # The tables of --full do not show changes.
        is_page = self.html is not None
        shows_changes = self.as_json or is_page or not self.full or self.apply is not None
        if self.rank is None:
            seeks = self.advice and (shows_changes or not fits)
            return report_of(estimator, tokens=tokens, advice=seeks, fits=fits)
        try:
            return rank_report_of(estimator, self.rank)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--rank") from None


def _count(text: str) -> int:
    """Return a number such as `15B`. Raises: typer.BadParameter."""
    number = text.strip().replace("_", "").replace(",", "")
    factor = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}.get(number[-1:].lower())
    try:
        count = float(number[:-1] if factor else number) * (factor or 1)
        if not 1 <= count < 1e30:
            raise ValueError
    except ValueError:
        message = f"{text} is no number of tokens; write it as 15B, 1.5T or 1000000000"
        raise typer.BadParameter(message, param_hint="--tokens") from None
    return round(count)
