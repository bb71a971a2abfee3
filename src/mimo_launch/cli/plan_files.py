"""The files that `plan --timeline`, `plan --trace` and `plan --html` write.

Decides: that they are written before the answer, so that a failure prints none; the messages.
Relies on: `drawing.svg`, `drawing.trace` and `drawing.plan_page` for the content.
Leaves: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from mimo_launch.cli.shared.console import Console
from mimo_launch.drawing.rows import RankReport, Report
from mimo_launch.drawing.spans import Unit, planned, simulated
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.simulation_result import Simulation

EXIT_UNWRITABLE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawings:
    """The files to write: a picture, of one rank if `rank` is given; a trace; a page of the job.

    `ranks` is the text of `--trace-ranks`. Times are estimated, or in `model_units`.
    """

    svg: Path | None
    trace: Path | None
    page: Path | None
    rank: int | None
    ranks: str | None
    model_units: bool

    def traced(self, num_ranks: int) -> Sequence[int] | None:
        """Return the ranks that `--trace-ranks` or else `--rank` asks for; None without both.

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


def check_targets(spec_file: Path, wanted: Drawings) -> None:
    """Refuse to overwrite the spec, or one file with the other, before anything is read.

    Raises: typer.BadParameter.
    """
    if wanted.page is not None and wanted.rank is not None:
        message = (
            "a page shows all ranks; leave out --rank, or give --timeline for a picture of one"
        )
        raise typer.BadParameter(message, param_hint="--html")
    taken = {spec_file.resolve(): "the spec"}
    options = ((wanted.svg, "--timeline"), (wanted.trace, "--trace"), (wanted.page, "--html"))
    for path, option in options:
        if path is None:
            continue
        if path.resolve() in taken:
            message = f"{path} would be written over {taken[path.resolve()]}"
            raise typer.BadParameter(message, param_hint=option)
        taken[path.resolve()] = f"the file of {option}"


def write_drawings(
    plan: Plan,
    report: Report | RankReport,
    console: Console,
    wanted: Drawings,
    estimator: Estimator,
) -> None:
    """Write the files that were asked for, and say where.

    Raises: typer.BadParameter; typer.Exit if a file cannot be written.
    """
    if wanted.svg is None and wanted.trace is None and wanted.page is None:
        return
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


def _write(path: Path, text: str, option: str, console: Console) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        console.refuse(
            f"cannot write {path}: {error.strerror or error}",
            help_=f"give {option} a file in a folder that exists and is yours",
            code=EXIT_UNWRITABLE,
        )
    console.note(f"wrote {path}")
