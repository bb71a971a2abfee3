"""A step in model time: which ranks work when, their bubbles, and their live microbatches.

Decides: which ranks share a row.
Relies on: the simulation of a `Plan`.
Leaves: drawing to `cli`.
"""

from mimo_launch.drawing.rows import ProgramRow, TimelineRow, Work
from mimo_launch.layout.layout import Layout, ModuleLayout, Role
from mimo_launch.schedule.actions import format_program
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.roles import needs_backward
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
    """Return the row of one rank alone."""
    work = _work(simulation, rank)
    return _row(layout.roles[rank], (rank,), work, simulation.makespan)


def program_rows(layout: Layout, programs: Programs) -> tuple[ProgramRow, ...]:
    """Return each program once, with the ranks that run it."""
    # Where bubbles are filled, ranks of one role may have programs of their own.
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
    """Return the most microbatches whose activations a rank of a stage holds for its backward."""
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
