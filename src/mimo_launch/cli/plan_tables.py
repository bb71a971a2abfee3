"""What `plan` prints: a first screen with the answer, or with `--full` or `--rank` all tables.

Decides: the form of the first screen: about 40 lines at most, readable at 60 columns; which tables
users see, and where long lists are cut.
Relies on: `drawing.rows` for the facts, `drawing.answer_text` for the words of the first screen;
`drawing.plan_tables` for tables that the page has, too.
Leaves: the output stream and its width to the command.
"""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.console import RenderableType
from rich.text import Text

from mimo_launch.cli.plan_estimates import (
    estimate_tables,
    headline,
    layer_parts,
    stage_table,
    text_table,
)
from mimo_launch.cli.shared.plain_table import PlainTable
from mimo_launch.diag.quantities import (
    coords_text,
    num_ranks_text,
    percent,
    ranks_text,
    seconds_text,
    some,
    span_text,
)
from mimo_launch.drawing.answer_text import (
    FITS_TITLE,
    KEYS_STAY,
    LOSSES_TITLE,
    PARTS,
    RANKS_TITLE,
    TIME_TITLE,
    LossText,
    basis_of,
    details_of,
    facts_of,
    fitting_of,
    holders_of,
    how_to_use,
    losses_of,
    times_of,
    title_of,
    tried_of,
)
from mimo_launch.drawing.plan_tables import (
    BRIDGES_TITLE,
    LOSS_TERMS_TITLE,
    MAX_GROUPS,
    bridge_table,
    bridge_text,
    group_table,
    loss_table,
    module_table,
    schedule_title,
)
from mimo_launch.drawing.rows import (
    BridgeRow,
    Header,
    HeldModule,
    RankReport,
    RankRow,
    Report,
)
from mimo_launch.drawing.timeline import bubble_lines, grid_lines

_WIDEST = 80
_BAR = 50
# Characters of a bar.
_MARKS = {"computing": "#", "communicating": "+", "waiting": ".", "updating": "="}


def parts_of(
    report: Report | RankReport, width: int, *, full: bool, fits: bool
) -> Iterator[RenderableType]:
    """Return the output about a job, with `full` as all tables if it fits, or about one rank."""
    if isinstance(report, RankReport):
        return rank_parts(report, width)
    if not fits:
        return fitting_screen(report, width)
    return job_parts(report, width) if full else first_screen(report, width)


def first_screen(report: Report, width: int) -> Iterator[RenderableType]:
    """Yield the answer and the picture."""
    width = min(width, _WIDEST)
    yield from _facts(report, width)
    yield from _part(TIME_TITLE)
    details = details_of(report.answer)
    for part, seconds in times_of(report.answer).items():
        share = seconds / report.answer.step_seconds
        bar = _MARKS[part] * round(share * min(_BAR, width - 32))
        yield f"{PARTS[part]:14}{seconds_text(seconds):>9} {percent(share):>5}  {bar}".rstrip()
        if part in details:
            yield from _lines(f"  {details[part]}", width, indent=2)
    if report.answer.losses:
        yield from _part(LOSSES_TITLE)
        for loss in losses_of(report.answer):
            yield from _loss(loss, width)
        for sentence in how_to_use(report.answer):
            yield from _lines(sentence, width)
    yield from _part(RANKS_TITLE)
    for holder in holders_of(report):
        yield from _lines(holder.text, width, indent=2)
        size, bar, total = min(width - 2, 72), "", 0.0
        for part, share in holder.shares.items():
            total += share
            bar += _MARKS[part] * max(0, round(total * size) - len(bar))
        yield f"  {bar}"
    yield ""
    yield from _lines(
        "--full: groups, stages, bridges, schedule, memory and work of all ranks. --rank N: of one",
        width,
    )


def fitting_screen(report: Report, width: int) -> Iterator[RenderableType]:
    """Yield the answer for a spec that does not fit, and changes that make it fit, if sought."""
    width = min(width, _WIDEST)
    yield ""
    yield from _facts(report, width)
    yield from _part(RANKS_TITLE)
    for holder in holders_of(report):
        yield from _lines(holder.text, width, indent=2)
    if (found := report.fitting) is None:
        return
    yield from _part(FITS_TITLE)
    for change in fitting_of(report, found):
        yield from _loss(change, width)
    for sentence in (*[KEYS_STAY][: len(found.changes)], *tried_of(found.tried)):
        yield from _lines(sentence, width)


def _facts(report: Report, width: int) -> Iterator[RenderableType]:
    """Yield the job, what the estimates are for, and whether it fits and how fast it is."""
    yield title_of(report)
    yield from _lines(basis_of(report), width)
    yield ""
    for name, text in facts_of(report).items():
        yield from _lines(f"{name:8}{text}", width, indent=8)


def _lines(text: str, width: int, indent: int = 0) -> Iterator[str]:
    yield from wrap(
        text, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    )


def _loss(loss: LossText, width: int) -> Iterator[RenderableType]:
    for line in _lines(loss.head, width, indent=3):
        yield Text(line, style="yellow")
    if loss.helps is not None:
        yield from _lines(f"   {loss.helps}", width, indent=3)
    for line in loss.settings:
        yield Text(f"     {line}", style="green")


def runs_text(held: HeldModule) -> str:
    """Say how often a module runs in a step."""
    if held.group_size == 1:
        return str(held.groups)
    return f"{held.groups} group{'s' * (held.groups > 1)} of {held.group_size}"


MAX_RANKS, RANKS_OF_MANY = 64, 16
MAX_SENDERS, MAX_RECEIVERS = 16, 8


def job_parts(report: Report, width: int) -> Iterator[RenderableType]:
    """Yield all tables about a job, from top to bottom."""
    yield _heading(report.header)
    yield from _part("Modules", text_table(module_table(report.modules)))
    yield from _part("Ranks", _ranks(report.ranks))
    more = len(report.ranks) - MAX_RANKS
    if more > 0:
        yield f"and {len(report.ranks) - RANKS_OF_MANY} more: --rank N shows one, --json all"
    if report.groups:
        yield from _part("Groups", text_table(group_table(report.groups)))
    yield from layer_parts(report.layers, report.experts)
    stages = PlainTable("module", "stage", "layers", "ranks", "peak live microbatches")
    for row in report.stages:
        layers = span_text(row.first_layer, row.last_layer)
        stages.add_row(
            row.module, str(row.stage), layers, ranks_text(row.ranks), str(row.peak_live)
        )
    yield from _part("Stages", stages)
    if report.bridges:
        yield from _part(BRIDGES_TITLE, text_table(bridge_table(report.bridges)))
        for bridge in report.bridges:
            yield from _links(bridge)
    if report.losses:
        yield from _part(LOSS_TERMS_TITLE, text_table(loss_table(report.losses)))
    schedule = report.schedule
    # "Bubble" means estimated time only, as in a real step; here times are in model units.
    idle = ", ".join(f"{role} {share}" for role, share in bubble_lines(schedule.timeline))
    yield from _part(schedule_title(schedule), f"idle units by role: {idle}")
    encoders = tuple(report.header.nominal_rows)
    yield from _plain(grid_lines(schedule.timeline, encoders, schedule.makespan, width))
    yield from _part(headline(report.estimates), *estimate_tables(report.estimates))


def rank_parts(report: RankReport, width: int) -> Iterator[RenderableType]:
    """Yield all tables about one rank, from top to bottom."""
    yield _heading(report.header)
    yield from _part(f"Rank {report.rank.rank}", _ranks((report.rank,)))
    if report.groups:
        yield from _part("Groups", text_table(group_table(report.groups)))
    if report.samples:
        samples = PlainTable("module", "group or microbatch", "samples")
        for each in report.samples:
            ranges = some(each.ranges, MAX_RECEIVERS, sep=", ", text=lambda ends: span_text(*ends))
            samples.add_row(each.module, str(each.index), ranges)
        yield from _part("Samples of a step, by their index in it", samples)
    if report.peers:
        words = {"send": "sends to", "receive": "receives from", "copy": "copies within"}
        peers = PlainTable("bridge", "", "rank", "rows", "by group")
        for peer in report.peers:
            counts = some(peer.rows, MAX_GROUPS, sep=", ")
            total = str(sum(peer.rows))
            peers.add_row(bridge_text(peer.bridge), words[peer.way], str(peer.peer), total, counts)
        yield from _part("Rows over bridges (nominal, forward)", peers)
    yield from _part(
        f"Schedule: {report.makespan:g} units, {percent(report.timeline.bubble)} of them idle"
    )
    encoders = tuple(report.header.nominal_rows)
    yield from _plain(grid_lines((report.timeline,), encoders, report.makespan, width))
    yield from _part("Program", report.program)
    for title, program in (("an evaluation", report.evaluation), ("decoding", report.decoding)):
        if program:
            yield from _part(f"Program of {title}", program)
    yield from _part(headline(report.estimates))
    for row in report.estimates.ranks:
        yield from (stage_table(row), "", *estimate_tables(report.estimates))


def _heading(header: Header) -> RenderableType:
    rows = ", ".join(f"{n} rows for {name}" for name, n in header.nominal_rows.items() if n)
    nominal = f"the same images: {rows}" if rows else "no image"
    lines = [
        f"{header.name}: {num_ranks_text(header.world_size)}, plan {header.plan_hash}",
        f"A step: {header.global_batch} samples of {header.seq} tokens, "
        f"{header.microbatches} microbatches of {header.microbatch_size} per language replica",
    ]
    if header.nominal_rows:
        lines.append(f"Rows are nominal: every sample is taken to have {nominal}")
    return Text("\n".join(lines))


def _part(title: str, *content: RenderableType) -> Iterator[RenderableType]:
    yield ""
    yield Text(title, style="bold")
    yield from content


def _plain(lines: Sequence[str]) -> Iterator[RenderableType]:
    for line in lines:
        yield Text(line, no_wrap=True, overflow="ellipsis")


def _ranks(rows: Sequence[RankRow]) -> PlainTable:
    has_nodes = rows[0].node is not None
    nodes = ("node",) if has_nodes else ()
    table = PlainTable(
        "rank", *nodes, "module", "(tp, cp, dp, pp)", "layers", "samples", "microbatches"
    )
    for row in rows if len(rows) <= MAX_RANKS else rows[:RANKS_OF_MANY]:
        lead = [str(row.rank), *([str(row.node)] if has_nodes else [])]
        if not row.modules:
            table.add_row(*lead, "idle")
        for held in row.modules:
            layers = span_text(held.first_layer, held.last_layer)
            where = coords_text(held.coords)
            table.add_row(*lead, held.module, where, layers, str(held.samples), runs_text(held))
            lead = [""] * len(lead)
    return table


def _links(bridge: BridgeRow) -> Iterator[RenderableType]:
    sent: dict[int, list[str]] = {}
    for link in bridge.links:
        copied = " copied" * (link.src == link.dst)
        sent.setdefault(link.src, []).append(f"{link.dst}: {link.rows}{copied}")
    if not sent:
        return
    to = "" if bridge.target is None else f"{bridge.target} "
    table = PlainTable(f"{bridge.source or bridge.encoder} rank", f"sends to {to}rank: rows")
    for src in list(sent)[:MAX_SENDERS]:
        table.add_row(str(src), some(sent[src], MAX_RECEIVERS, sep=", "))
    yield ""
    yield table
    if len(sent) > MAX_SENDERS:
        yield f"and {len(sent) - MAX_SENDERS} more: --rank N shows one, --json all"
