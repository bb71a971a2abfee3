"""A step in model time: which ranks work when, their bubbles, and a text grid that shows them.

Decides: which ranks share a row; the cells of the grid (`F0`, `vB1`), one column per unit of time,
and how to cut a grid that is too wide or too high.
Relies on: the simulation of a `Plan`; for the grid, work that starts and stops at whole units.
Leaves: the terminal's width, and drawing, to `cli`.
"""

from collections.abc import Iterator, Sequence

from mimo_launch.diag.quantities import percent, ranks_text, role_text
from mimo_launch.drawing.rows import ProgramRow, TimelineRow, Work
from mimo_launch.layout.layout import Layout, ModuleLayout, Role
from mimo_launch.schedule.actions import Kind, format_program, parse_action
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.simulation_result import Simulation


def timeline_rows(layout: Layout, simulation: Simulation) -> tuple[TimelineRow, ...]:
    """Return one row per distinct way to spend a step, in the order of their first ranks."""
    # Ranks that are alike share their events; the work of other ranks may still be equal.
    works: dict[int, int] = {}
    different: dict[tuple[Work, ...], int] = {}
    ranks_of: dict[tuple[Role, int], list[int]] = {}
    for rank, events in enumerate(simulation.events):
        if id(events) not in works:
            work = _work(simulation, rank)
            works[id(events)] = different.setdefault(work, len(different))
        ranks_of.setdefault((layout.roles[rank], works[id(events)]), []).append(rank)
    shown, makespan = list(different), simulation.makespan
    return tuple(
        _row(role, tuple(ranks), shown[number], makespan)
        for (role, number), ranks in ranks_of.items()
    )


def timeline_row(layout: Layout, simulation: Simulation, rank: int) -> TimelineRow:
    """Return the row of one rank."""
    work = _work(simulation, rank)
    return _row(layout.roles[rank], (rank,), work, simulation.makespan)


def program_rows(layout: Layout, programs: Programs) -> tuple[ProgramRow, ...]:
    """Return each program once, with the ranks that run it."""
    # Under bubble filling, ranks of one role may have different programs.
    ranks_of: dict[tuple[Role, int], list[int]] = {}
    for rank, program in enumerate(programs):
        ranks_of.setdefault((layout.roles[rank], id(program)), []).append(rank)
    return tuple(
        ProgramRow(
            role=_words(role), ranks=tuple(ranks), program=format_program(programs[ranks[0]])
        )
        for (role, _), ranks in ranks_of.items()
    )


def peak_live(layout: Layout, simulation: Simulation, module: ModuleLayout, stage: int) -> int:
    """Return the most microbatches with saved activations on a rank of a stage at one time."""
    if not needs_backward(layout, module):
        return 0
    ranks = module.stage_ranks(stage)
    different = {id(simulation.events[rank]): rank for rank in ranks}.values()
    return module.group_size * max(
        simulation.peak_live(rank, module.name, stage) for rank in different
    )


def _work(simulation: Simulation, rank: int) -> tuple[Work, ...]:
    return tuple(
        Work(action=str(event.slot[0]), start=event.start, stop=event.stop)
        for event in simulation.events[rank]
        if event.slot[0].kind.is_compute
    )


def _row(
    role: Role, ranks: tuple[int, ...], work: tuple[Work, ...], makespan: float
) -> TimelineRow:
    busy = sum(each.stop - each.start for each in work)
    bubble = 1.0 - busy / makespan if makespan else 0.0
    return TimelineRow(role=_words(role), ranks=ranks, bubble=bubble, work=work)


def _words(role: Role) -> tuple[str, ...]:
    return tuple(f"{module}.{stage}" for module, stage in role)


IDLE, GOES_ON = ".", "-"
MAX_LINES, MAX_BLOCKS = 64, 6


def letters(encoders: Sequence[str]) -> dict[str, str]:
    """Return the shortest prefix of each encoder's name that no other encoder shares."""
    short = {}
    for name in encoders:
        others = [other for other in encoders if other != name]
        sizes = range(1, len(name) + 1)
        size = next((n for n in sizes if not any(o[:n] == name[:n] for o in others)), len(name))
        short[name] = name[:size]
    return short


def grid_lines(
    rows: Sequence[TimelineRow], encoders: Sequence[str], makespan: float, width: int
) -> list[str]:
    """Return the grid, cut into blocks that are at most `width` columns wide."""
    note = []
    if len(rows) > MAX_LINES:
        first: dict[tuple[str, ...], TimelineRow] = {}
        for row in rows:
            first.setdefault(row.role, row)
        kept = tuple(first.values())[:MAX_LINES]
        note = [f"{len(kept)} of {len(rows)} lines, the first of each role; --json has all."]
        rows = kept
    held = {part.rpartition(".")[0] for row in rows for part in row.role}
    short = {name: each for name, each in letters(encoders).items() if name in held}
    cells = []
    for row in rows:
        line = [IDLE] * int(makespan)
        for work in row.work:
            action = parse_action(work.action)
            cell = f"{short.get(action.module, '')}{action.kind.value}{action.index}"
            begin, end = int(work.start), int(work.stop)
            line[begin:end] = [cell, *[GOES_ON * len(cell)] * (end - begin - 1)]
        cells.append(line)
    labels = [f"{ranks_text(row.ranks)} {role_text(row.role)}" for row in rows]
    label_width = min(max(len(label) for label in labels), max(12, width // 3))
    cell_width = 1 + max((len(cell) for line in cells for cell in line), default=1)
    per_block = max(1, (width - label_width - 1) // cell_width)
    lines = []
    starts = range(0, int(makespan), per_block)
    for start in starts[:MAX_BLOCKS]:
        span = range(start, min(int(makespan), start + per_block))
        ruler = "".join(f"{t if t % 4 == 0 else '':<{cell_width}}" for t in span)
        lines.append(f"{'':<{label_width}} {ruler}".rstrip())
        for label, line in zip(labels, cells, strict=True):
            text = "".join(f"{line[t]:<{cell_width}}" for t in span)
            fitting = label if len(label) <= label_width else label[: label_width - 2] + ".."
            lines.append(f"{fitting:<{label_width}} {text}".rstrip())
        lines.append("")
    if len(starts) > MAX_BLOCKS:
        note.append(f"The last {int(makespan) - starts[MAX_BLOCKS]} units are in --json only.")
    return [*lines, *note, *_legend(short, rows)]


def bubble_lines(rows: Sequence[TimelineRow]) -> Iterator[tuple[str, str]]:
    """Yield each role and the mean bubble of its ranks."""
    roles: dict[tuple[str, ...], list[TimelineRow]] = {}
    for row in rows:
        if row.work:
            roles.setdefault(row.role, []).append(row)
    for role, members in roles.items():
        ranks = sum(len(row.ranks) for row in members)
        mean = sum(row.bubble * len(row.ranks) for row in members) / ranks
        yield role_text(role), percent(mean)


def _legend(short: dict[str, str], rows: Sequence[TimelineRow]) -> Iterator[str]:
    forward, backward = Kind.FORWARD.value, Kind.BACKWARD.value
    yield f"{forward}0 {backward}0: forward and backward of language on microbatch 0"
    for name, letter in short.items():
        yield f"{letter}{forward}0 {letter}{backward}0: the same of {name}"
    is_long = any(work.stop - work.start > 1 for row in rows for work in row.work)
    yield "a column: the time of one microbatch; transfers take none; " + (
        f"{IDLE} waits{f', {GOES_ON * 3} goes on' * is_long}"
    )
