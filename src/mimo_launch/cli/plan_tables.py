"""What `plan` prints with `--full` or `--rank`: all tables about a job, or about one rank.

Decides: the order of the tables, and how many ranks they show.
Relies on: `drawing.rows` for the facts, `drawing.plan_tables` for tables.
Leaves: the first screen to `plan_screen`, the output stream and its width to the command.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from mimo_launch.cli.shared.plain_table import PlainTable
from mimo_launch.diag.quantities import counted, percent
from mimo_launch.drawing.plan_tables import (
    BRIDGES_TITLE,
    HOSTS_TITLE,
    LOSS_TERMS_TITLE,
    bridge_table,
    estimates_title,
    expert_table,
    group_table,
    host_lines,
    layer_table,
    link_table,
    loss_table,
    memory_table,
    module_table,
    not_counted,
    peer_table,
    places_text,
    rank_table,
    sample_table,
    schedule_title,
    stage_estimate_table,
    stage_table,
    work_table,
)
from mimo_launch.drawing.rows import Header, RankReport, Report
from mimo_launch.drawing.table import Table
from mimo_launch.drawing.timeline import bubble_lines, grid_lines
from mimo_launch.estimate.rows import Estimates

MAX_RANKS, RANKS_OF_MANY, MAX_SENDERS = 64, 16, 16


def job_parts(report: Report, width: int) -> Iterator[RenderableType]:
    """Yield all tables about a job, from top to bottom."""
    yield _heading(report.header)
    yield from _part("Modules", module_table(report.modules))
    more = len(report.ranks) - MAX_RANKS
    shown = report.ranks if more <= 0 else report.ranks[:RANKS_OF_MANY]
    yield from _part("Ranks", rank_table(shown))
    if more > 0:
        yield f"and {len(report.ranks) - RANKS_OF_MANY} more: --rank N shows one, --json all"
    if report.groups:
        yield from _part("Groups", group_table(report.groups))
    if (layers := layer_table(report.layers)).rows:
        yield from _part("Layers", layers)
    if report.experts:
        yield from _part("Experts", expert_table(report.experts))
        yield from map(places_text, report.experts)
    yield from _part("Stages", stage_table(report.stages))
    if report.bridges:
        yield from _part(BRIDGES_TITLE, bridge_table(report.bridges))
        for bridge in report.bridges:
            if (links := link_table(bridge, MAX_SENDERS)).rows:
                yield from ("", PlainTable(links))
            if (others := len({link.src for link in bridge.links}) - MAX_SENDERS) > 0:
                yield f"and {others} more: --rank N shows one, --json all"
    if report.losses:
        yield from _part(LOSS_TERMS_TITLE, loss_table(report.losses))
    schedule = report.schedule
    # "Bubble" means estimated time only, as in a real step; here times are in model units.
    idle = ", ".join(f"{role} {share}" for role, share in bubble_lines(schedule.timeline))
    yield from _part(schedule_title(schedule), f"idle units by role: {idle}")
    encoders = tuple(report.header.nominal_rows)
    yield from _plain(grid_lines(schedule.timeline, encoders, schedule.makespan, width))
    yield from _part(estimates_title(report.estimates))
    yield from _estimates(report.estimates)
    yield from _part(HOSTS_TITLE, *host_lines(report.hosts))


def rank_parts(report: RankReport, width: int) -> Iterator[RenderableType]:
    """Yield all tables about one rank, from top to bottom."""
    yield _heading(report.header)
    yield from _part(f"Rank {report.rank.rank}", rank_table((report.rank,)))
    if report.groups:
        yield from _part("Groups", group_table(report.groups))
    if report.samples:
        title = "Samples of a step, by their index in it"
        yield from _part(title, sample_table(report.samples))
    if report.peers:
        yield from _part("Rows over bridges (of one step, forward)", peer_table(report.peers))
    yield from _part(
        f"Schedule: {report.makespan:g} units, {percent(report.timeline.bubble)} of them idle"
    )
    encoders = tuple(report.header.nominal_rows)
    yield from _plain(grid_lines((report.timeline,), encoders, report.makespan, width))
    yield from _part("Program", report.program)
    for title, program in (("an evaluation", report.evaluation), ("decoding", report.decoding)):
        if program:
            yield from _part(f"Program of {title}", program)
    yield from _part(estimates_title(report.estimates))
    for row in report.estimates.ranks:
        yield from (PlainTable(stage_estimate_table(row)), "", *_estimates(report.estimates))


def _estimates(estimates: Estimates) -> Iterator[RenderableType]:
    """Yield the memory first: users mostly want to know whether ranks fit."""
    yield from not_counted(estimates)
    yield PlainTable(memory_table(estimates))
    yield ""
    yield PlainTable(work_table(estimates))


def _heading(header: Header) -> RenderableType:
    rows = ", ".join(f"{n} rows for {name}" for name, n in header.nominal_rows.items() if n)
    nominal = rows or "no rows"
    lines = [
        f"{header.name}: {counted(header.world_size, 'rank')}, plan {header.plan_hash}",
        f"A step: {counted(header.global_batch, 'sample')} of {counted(header.seq, 'token')}, "
        f"{counted(header.microbatches, 'microbatch')} of {header.microbatch_size} per language "
        "replica",
    ]
    if header.nominal_rows:
        lines.append(f"Rows are those of one step; a sample has {nominal} on average")
    return Text("\n".join(lines))


def _part(title: str, *content: Table | str) -> Iterator[RenderableType]:
    yield ""
    yield Text(title, style="bold")
    yield from (PlainTable(each) if isinstance(each, Table) else each for each in content)


def _plain(lines: Sequence[str]) -> Iterator[RenderableType]:
    for line in lines:
        yield Text(line, no_wrap=True, overflow="ellipsis")
