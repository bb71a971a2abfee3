"""The files that `plan --timeline`, `plan --trace`, `plan --html` and `plan --apply` write.

Decides: that it writes the files before the answer, so that a failure prints no answer; the
messages; which change a number means.
Relies on: `drawing.svg`, `drawing.trace`, `drawing.plan_page` and `spec.editing` for the content.
Leaves: nothing.
"""

from collections.abc import Sequence
from pathlib import Path

import typer

from mimo_launch.cli.shared.console import Console
from mimo_launch.diag.frozen import frozen
from mimo_launch.drawing.rows import RankReport, Report
from mimo_launch.drawing.spans import Unit, planned, simulated
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.simulation_result import Simulation
from mimo_launch.spec.wording import listing

APPLY = "--apply"


@frozen(kw_only=True)
class Drawings:
    """The files to write: a picture, of one rank if `rank` is given; a trace; a page; a spec.

    The spec is the spec of the job with one `change` of the answer, given by number. `ranks` is the
    text of `--trace-ranks`. Times are estimated, or in `model_units`.
    """

    svg: Path | None
    trace: Path | None
    page: Path | None
    spec: Path | None
    change: int | None
    rank: int | None
    ranks: str | None
    model_units: bool

    def traced(self, num_ranks: int) -> Sequence[int] | None:
        """Return the ranks of `--trace-ranks`, or else of `--rank`; None if neither is given.

        Raises: typer.BadParameter.
        """
        if self.ranks is None:
            return None if self.rank is None else (self.rank,)
        if self.ranks == "all":
            return range(num_ranks)
        from mimo_launch.launcher.worker_logs import parse_ranks

        try:
            ranks = sorted(parse_ranks(self.ranks))
        except ValueError as error:
            raise typer.BadParameter(f"{error}; or all", param_hint="--trace-ranks") from error
        if ranks[-1] >= num_ranks:
            message = f"there is no rank {ranks[-1]}; the last one is {num_ranks - 1}"
            raise typer.BadParameter(message, param_hint="--trace-ranks")
        return ranks


def check_targets(spec_file: Path, wanted: Drawings, console: Console, *, seeks: bool) -> None:
    """Before anything is read, refuse to overwrite the spec, or one written file with another.

    Refuse files that cannot be written, too.

    Refuse options that contradict or lack each other, too: --html with --rank, --apply without
    --output or the reverse, --apply if the answer shows no changes, and what is about a file that
    is not written.

    Raises: typer.BadParameter; typer.Exit if a file cannot be written.
    """
    if wanted.page is not None and wanted.rank is not None:
        message = (
            "a page shows all ranks; leave out --rank, or give --timeline for a picture of one"
        )
        raise typer.BadParameter(message, param_hint="--html")
    if wanted.spec is None and wanted.change is not None:
        message = "into which file? Add -o new.yaml"
        raise typer.BadParameter(message, param_hint=APPLY)
    if wanted.spec is not None and wanted.change is None:
        message = f"with which change? Add {APPLY} 1"
        if "=" in str(wanted.spec):
            message = f"a setting? Write --set {wanted.spec}"
        raise typer.BadParameter(message, param_hint="--output")
    if wanted.change is not None and (wanted.rank is not None or not seeks):
        other = "--no-advice" if wanted.rank is None else "--rank"
        message = f"{other} shows no changes; leave it out"
        raise typer.BadParameter(message, param_hint=APPLY)
    if wanted.ranks is not None and wanted.trace is None:
        raise typer.BadParameter("in which file? Add --trace step.json", param_hint="--trace-ranks")
    if wanted.model_units and wanted.svg is None and wanted.trace is None and wanted.page is None:
        message = "of which file? Add --timeline step.svg, --trace or --html"
        raise typer.BadParameter(message, param_hint="--model-units")
    targets = {
        "--timeline": wanted.svg, "--trace": wanted.trace, "--html": wanted.page,
        "--output": wanted.spec,
    }  # fmt: skip
    console.check_files(spec_file, ((path, option) for option, path in targets.items()))
    if wanted.svg is not None and wanted.svg.suffix.lower() not in ("", ".svg"):
        message = f"{wanted.svg} would be SVG; write --timeline {wanted.svg.with_suffix('.svg')}"
        raise typer.BadParameter(message, param_hint="--timeline")


def write_drawings(
    estimator: Estimator, report: Report | RankReport, console: Console, wanted: Drawings
) -> None:
    """Write the requested files, and say where.

    Raises: typer.BadParameter; typer.Exit if a file cannot be written.
    """
    if wanted.svg is None and wanted.trace is None and wanted.page is None:
        return
    plan = estimator.plan
    simulation = None if wanted.model_units else estimator.simulation_of_all
    if wanted.svg is not None or wanted.trace is not None:
        _write_step(plan, simulation, report, console, wanted)
    if wanted.page is not None and isinstance(report, Report):
        from mimo_launch.drawing.plan_page import plan_page

        _write(wanted.page, plan_page(plan, report, simulation), "--html", console)


def _write_step(
    plan: Plan,
    simulation: Simulation | None,
    report: Report | RankReport,
    console: Console,
    wanted: Drawings,
) -> None:
    """Write the picture and the trace of the step."""
    header = report.header
    traced = wanted.traced(header.world_size)
    timeline = (
        planned(plan) if simulation is None else simulated(plan.layout, simulation, Unit.ESTIMATED)
    )
    if wanted.svg is not None:
        from mimo_launch.drawing.svg import render_svg

        text = render_svg(
            timeline,
            name=header.name,
            plan_hash=header.plan_hash,
            rank=wanted.rank,
            device="" if simulation is None else report.estimates.device,
        )
        _write(wanted.svg, text, "--timeline", console)
    if wanted.trace is not None:
        from mimo_launch.drawing.trace import ranks_shown, render_trace

        ranks = ranks_shown(timeline) if traced is None else traced
        text = render_trace(timeline, name=header.name, ranks=ranks)
        _write(wanted.trace, text, "--trace", console)
        if traced is None and len(ranks) < header.world_size:
            console.note(
                f"   = note: it has {len(ranks)} of {header.world_size:,} ranks, one of each "
                "kind; --trace-ranks 0,5-7 or --trace-ranks all writes others"
            )


def write_change(
    file: Path,
    overrides: Sequence[str],
    report: Report | RankReport,
    console: Console,
    wanted: Drawings,
) -> bool:
    """Write the spec with its overrides and the requested change; return whether one was requested.

    Raises: typer.Exit if there is no such change, or the spec cannot be written.
    """
    if wanted.spec is None or wanted.change is None or not isinstance(report, Report):
        return False
    from mimo_launch.spec.editing import with_settings

    changes = [loss.change for loss in report.answer.losses]
    if report.fitting is not None:
        changes = list(report.fitting.changes)
    numbers = [number for number, change in enumerate(changes, 1) if change is not None]
    if wanted.change not in numbers:
        known = f"write {APPLY} {listing([str(each) for each in numbers])}"
        console.refuse(
            f"there is no change {wanted.change}",
            help_=known if numbers else "leave --apply out: nothing of what was tried helps",
        )
    change = changes[wanted.change - 1]
    text = with_settings(file, overrides, {} if change is None else change.settings)
    _write(wanted.spec, text, "--output", console)
    return True


def _write(path: Path, text: str, option: str, console: Console) -> None:
    console.write_file(path, text, option)
    console.note(f"wrote {path}")
