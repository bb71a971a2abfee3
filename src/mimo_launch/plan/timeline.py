"""A step in model time: who works when, who waits, how much is alive at once.

Decides: the cost model of `plan`: a forward or backward of one microbatch takes one unit, that of a
group of k microbatches k units, so that group sizes can be compared.
Relies on: `simulate`, run on the programs that the runtime executes.
Leaves: drawing to `cli`.
"""

from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.plan.rows import ProgramRow, TimelineRow, Work
from mimo_launch.schedule.actions import format_program
from mimo_launch.schedule.bound import lower_bound
from mimo_launch.schedule.generate import Programs, Role, needs_backward, role_of
from mimo_launch.schedule.simulate import Costs, Simulation, simulate


class DeadlockError(Exception):
    """The programs of a layout do not end; `stuck` says where each rank waits."""

    def __init__(self, stuck: tuple[str, ...]) -> None:
        super().__init__(f"{len(stuck)} ranks cannot go on: {'; '.join(stuck[:4])}")
        self.stuck = stuck


def proven(layout: Layout, programs: Programs) -> Simulation:
    """Return the course of a step.

    Raises: DeadlockError if a rank does not reach its end.
    """
    simulation = simulate(layout, programs, _units(layout))
    if simulation.stuck:
        raise DeadlockError(simulation.stuck)
    return simulation


def shortest(layout: Layout) -> float:
    """Return a time that no order of the work of a step can pass."""
    return lower_bound(layout, _units(layout))


def _units(layout: Layout) -> Costs:
    units = {module.name: float(module.group_size) for module in layout.modules}
    return Costs(forward=units, backward=units)


def timeline_rows(layout: Layout, simulation: Simulation) -> tuple[TimelineRow, ...]:
    """Return one row per way to spend the step, in the order of their first ranks."""
    ranks_of: dict[tuple[Role, tuple[Work, ...]], list[int]] = {}
    seen: dict[tuple[object, ...], tuple[Work, ...]] = {}
    for rank, events in enumerate(simulation.events):
        key = tuple((e.slot[0], e.start, e.stop) for e in events if e.slot[0].kind.is_compute)
        if key not in seen:
            seen[key] = _work(simulation, rank)
        ranks_of.setdefault((role_of(layout, rank), seen[key]), []).append(rank)
    makespan = simulation.makespan
    return tuple(
        _row(role, tuple(ranks), work, makespan) for (role, work), ranks in ranks_of.items()
    )


def timeline_row(layout: Layout, simulation: Simulation, rank: int) -> TimelineRow:
    """Return the row of one rank alone."""
    work = _work(simulation, rank)
    return _row(role_of(layout, rank), (rank,), work, simulation.makespan)


def program_rows(layout: Layout, programs: Programs) -> tuple[ProgramRow, ...]:
    """Return each program once, with the ranks that run it."""
    # Where bubbles are filled, ranks of one role may have programs of their own.
    ranks_of: dict[tuple[Role, int], list[int]] = {}
    for rank, program in enumerate(programs):
        ranks_of.setdefault((role_of(layout, rank), id(program)), []).append(rank)
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
    return module.group_size * max(simulation.peak_live(r, module.name, stage) for r in ranks)


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
