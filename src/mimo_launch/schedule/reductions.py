"""What finishes a step: sums of gradients, their norms, the update.

Decides: when gradients are summed, over which ranks, as actions of a program.
Relies on: programs of computes and transfers from `generate`.
Leaves: the sums themselves to `runtime` and `optimizer`.

Gradients are summed over dp and cp with the last backward of each stage; fully sharded, with every
backward, so that no whole gradient stays. After the program come the sums over tp of what its ranks
hold terms of, and over the first and last stage of a tied embedding; then the norms, which all
ranks agree on, and the update.
"""

from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.schedule.actions import STEP, Action, Kind, Program, Slot
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.roles import needs_backward


def completed(layout: Layout, programs: Programs) -> Programs:
    """Return training programs with everything that finishes a step."""
    made: dict[tuple[int, tuple[Action, ...]], Program] = {}
    found = []
    for rank, program in enumerate(programs):
        key = id(program), _end(layout, rank)
        if key not in made:
            made[key] = (*(_reduced(layout, slot) for slot in program), *((a,) for a in key[1]))
        found.append(made[key])
    return tuple(found)


def _reduced(layout: Layout, slot: Slot) -> Slot:
    action = slot[0]
    if action.kind is not Kind.BACKWARD:
        return slot
    module = layout[action.module]
    if not module.full_sharding and action.index != last_index(layout, module):
        return slot
    return (action, Action(action.module, action.stage, Kind.REDUCE, action.index))


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


def decoding(layout: Layout, programs: Programs) -> Programs:
    """Return the programs that find the next token of all samples, from those of an evaluation.

    Language alone runs again, on the rows that an evaluation left; then the last stage tells its
    choices to the other ranks of its replica.
    """
    name = layout.language.name
    made: dict[int, Program] = {}
    for program in programs:
        if id(program) not in made:
            slots = (tuple(a for a in slot if a.module == name) for slot in program)
            kept = tuple(slot for slot in slots if slot)
            share = ((Action(name, None, Kind.SHARE, 0),),) if kept else ()
            made[id(program)] = (*kept, *share)
    return tuple(made[id(program)] for program in programs)
