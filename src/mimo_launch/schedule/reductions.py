"""The actions that finish a step: sums of gradients, their norms, the update.

Decides: when gradients are summed, and over which ranks, as actions of a program.
Relies on: programs of computes and transfers from `generate`.
Leaves: the sums themselves to `runtime` and `optimizer`.

Gradients are summed over dp and cp with the last backward of each stage, or under full sharding
with every backward, so that no rank keeps a whole gradient. After the program come the sums over tp
of gradients that each tp rank has only a term of, and those over the first and last stage of a tied
embedding; then the norms, for which all ranks meet, and the update.
"""

from mimo_launch.layout.layout import Layout, ModuleLayout, Role
from mimo_launch.schedule.actions import STEP, Action, Kind, Program, Slot
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.roles import needs_backward


def completed(layout: Layout, programs: Programs) -> Programs:
    """Return training programs with everything that finishes a step."""
    # Ranks that hold the same stages also end alike.
    keys = [(role, id(program)) for role, program in zip(layout.roles, programs, strict=True)]
    made: dict[tuple[Role, int], Program] = {}
    for rank, key in enumerate(keys):
        if key not in made:
            made[key] = _completed(layout, rank, programs[rank])
    return tuple([made[key] for key in keys])


def _completed(layout: Layout, rank: int, program: Program) -> Program:
    slots: list[Slot] = []
    for slot in program:
        action = slot[0]
        slots.append(slot)
        if action.kind is not Kind.BACKWARD:
            continue
        module = layout[action.module]
        if module.full_sharding or action.index == last_index(layout, module):
            reduce = Action(action.module, action.stage, Kind.REDUCE, action.index)
            slots[-1] = (action, reduce)
    return (*slots, *((action,) for action in _end(layout, rank)))


def last_index(layout: Layout, module: ModuleLayout) -> int:
    """Return the index of the last backward of every stage of a module."""
    return layout.num_groups(module) - 1


def _end(layout: Layout, rank: int) -> tuple[Action, ...]:
    """Return what a rank does after all its backwards."""
    actions = []
    for module in layout.modules_of(rank):
        if module.frozen or not needs_backward(layout, module):
            continue
        if module.grid.size("tp") > 1:
            actions.append(Action(module.name, None, Kind.SUM_TP, 0))
        if module.is_language and rank in layout.tied_ranks:
            actions.append(Action(module.name, None, Kind.SUM_TIED, 0))
    return (*actions, Action(STEP, None, Kind.NORM, 0), Action(STEP, None, Kind.UPDATE, 0))
