"""The program of every rank: phases around pipelines, or one pipeline with its bubbles filled.

Decides: the order of the parts of a step on a rank; that inputs are received right before the
action that needs them, and results sent right after the action that makes them; which transfers
share a slot.
Relies on: `pipeline` and `bubble_filling` for the order of computes, `dependencies` for inputs.
Leaves: proving that the programs end to `simulate`.

Where language reads all other modules (a star), a step is a sequence of groups of microbatches. In
each group, encoders that share ranks with language run first (forward, exchange); then language and
all upstream encoders run as a pipeline over the group's microbatches; then the gradients are
exchanged back and the shared encoders run backward. Without shared encoders the one group is the
whole step. The pipeline drains at the end of a group. For any other graph see `graph_order`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mimo_launch.layout.layout import Layout, Role
from mimo_launch.schedule.actions import Action, Kind, Program, Slot
from mimo_launch.schedule.bubble_filling import bubble_orders
from mimo_launch.schedule.dependencies import needs
from mimo_launch.schedule.graph_order import graph_orders
from mimo_launch.schedule.pipeline import pipeline_order
from mimo_launch.schedule.rank_classes import classes_of
from mimo_launch.schedule.roles import (
    exchanges,
    fills_bubbles,
    groups_of,
    is_bridge_end,
    needs_backward,
)


def program_of(
    layout: Layout,
    role: Role,
    order: Iterable[Action],
    arrivals: Mapping[Action, Sequence[Action]] | None = None,
) -> Program:
    """Return the program that computes and exchanges in this order.

    `arrivals` lists for a receive those that its channel brings before it, and itself.

    Consecutive point-to-point actions share a slot, every other action has its own. Opposite
    transfers between two ranks (an activation down, a gradient up) are then posted together, so
    neither side waits for the other to receive first.
    """
    slots: list[Slot] = []
    open_slot = False
    for action in _with_transfers(layout, role, order, arrivals or {}):
        joins = not (action.kind.is_compute or action.kind.is_collective)
        if joins and open_slot:
            slots[-1] = (*slots[-1], action)
        else:
            slots.append((action,))
        open_slot = joins
    return tuple(slots)


def _with_transfers(
    layout: Layout,
    role: Role,
    order: Iterable[Action],
    arrivals: Mapping[Action, Sequence[Action]],
) -> Iterator[Action]:
    """Yield actions, each compute with the receives before it and the sends after it."""
    received: set[Action] = set()
    for action in order:
        if not action.kind.is_compute:
            yield action
            continue
        for each in needs(layout, role, action):
            if each.kind not in (Kind.RECV_F, Kind.RECV_B):
                continue
            # A group of microbatches arrives once, before the first of them.
            new = [one for one in arrivals.get(each, (each,)) if one not in received]
            received.update(new)
            yield from new
        yield action
        yield from _sends(layout, action)


def _sends(layout: Layout, action: Action) -> Iterator[Action]:
    """Yield the point-to-point sends of what a compute makes."""
    module = layout[action.module]
    if action.kind is Kind.FORWARD:
        if action.stage != len(module.stages) - 1:
            yield Action(module.name, action.stage, Kind.SEND_F, action.index)
        else:
            for bridge in layout.bridges_from(module.name):
                transfer = bridge.of_source(action.index)
                # The rows of a group leave together, after its last forward.
                if not exchanges(layout, bridge) and action.index == bridge.sources(transfer)[-1]:
                    yield Action(bridge.name, None, Kind.SEND_F, transfer)
    elif action.stage:
        if needs_backward(layout, module, action.stage - 1):
            yield Action(module.name, action.stage, Kind.SEND_B, action.index)
    else:
        for bridge in layout.bridges_into(module.name):
            transfer = bridge.of_target(action.index)
            is_pairwise = not exchanges(layout, bridge)
            # So do its gradients, after its last backward.
            if (
                is_pairwise
                and needs_backward(layout, layout[bridge.source])
                and action.index == bridge.targets(transfer)[-1]
            ):
                yield Action(bridge.name, None, Kind.SEND_B, transfer)


Programs = tuple[Program, ...]


def generate(layout: Layout) -> Programs:
    """Return the training program of each rank; ranks that do the same share one object."""
    if not layout.is_star:
        return _in_one_order(layout, backward=True)
    if not any(fills_bubbles(layout, encoder) for encoder in layout.encoders):
        return _for_every_role(layout, backward=True)
    classes = classes_of(layout)
    first = {each: rank for rank, each in reversed(list(enumerate(classes)))}
    made = {
        each: program_of(layout, layout.roles[first[each]], order)
        for each, order in enumerate(bubble_orders(layout, classes))
    }
    return tuple(made[each] for each in classes)


def generate_forward(layout: Layout) -> Programs:
    """Return the program of each rank for a step without gradients (evaluation)."""
    if not layout.is_star:
        return _in_one_order(layout, backward=False)
    return _for_every_role(layout, backward=False)


def _in_one_order(layout: Layout, *, backward: bool) -> Programs:
    orders = graph_orders(layout, backward=backward)
    arrivals = _arrivals(layout, orders.values())
    made = {role: program_of(layout, role, order, arrivals) for role, order in orders.items()}
    return tuple(made[role] for role in layout.roles)


def _arrivals(layout: Layout, orders: Iterable[list[Action]]) -> dict[Action, list[Action]]:
    """Return, for each receive between virtual stages, all that its channel brings up to it.

    One channel carries the messages of several stages, in the order in which they are made, which
    need not be that in which they are used.
    """
    language, found = layout.language, dict[Action, list[Action]]()
    depth, name = language.grid.size("pp"), language.name
    if len(language.stages) == depth:
        return found
    for order in orders:
        brought: dict[tuple[Kind, int], list[Action]] = {}
        for action in order:
            forward = action.kind is Kind.FORWARD
            to = (action.stage or 0) + (1 if forward else -1)
            if action.module != name or not 0 <= to < len(language.stages):
                continue
            kind = Kind.RECV_F if forward else Kind.RECV_B
            lower = Action(name, to, kind, action.index)
            brought.setdefault((kind, language.pp_index(to)), []).append(lower)
        for receives in brought.values():
            found |= {each: receives[: place + 1] for place, each in enumerate(receives)}
    return found


def _for_every_role(layout: Layout, *, backward: bool) -> Programs:
    made = {
        role: program_of(layout, role, _phases(layout, role, backward=backward))
        for role in dict.fromkeys(layout.roles)
    }
    return tuple(made[role] for role in layout.roles)


def _phases(layout: Layout, role: Role, *, backward: bool) -> Iterator[Action]:
    """Yield what a role computes and exchanges in the phases of a step, in order."""
    encoders = [encoder for encoder in layout.encoders if encoder.in_phases]
    for group in groups_of(layout):
        for encoder in encoders:
            for name, stage in role:
                if name == encoder.name:
                    yield Action(name, stage, Kind.FORWARD, group.index)
            bridge = layout.bridges[encoder.name]
            if exchanges(layout, bridge) and is_bridge_end(layout, bridge, role):
                yield Action(encoder.name, None, Kind.EXCHANGE_F, group.index)
        yield from pipeline_order(layout, role, group.microbatches, backward=backward)
        for encoder in encoders:
            if not backward or not needs_backward(layout, encoder):
                continue
            if is_bridge_end(layout, layout.bridges[encoder.name], role):
                yield Action(encoder.name, None, Kind.EXCHANGE_B, group.index)
            for name, stage in role:
                if name == encoder.name and needs_backward(layout, encoder, stage):
                    yield Action(name, stage, Kind.BACKWARD, group.index)


def generate_decoding(layout: Layout, programs: Programs) -> Programs:
    """Return the programs that find the next token of all samples, from those of an evaluation.

    Only language runs again, on the rows that the evaluation left; then the last stage sends its
    choices to the other ranks of its replica.
    """
    return _passes_of(programs, [layout.language.name])


def generate_drawing(layout: Layout, programs: Programs) -> Programs:
    """Return the programs of one pass of the generators that draw.

    Only these run again, on the rows that the evaluation left; then their last stages send what
    they have found to the other ranks of their replicas.
    """
    names = [module.name for module in layout.losses if module.draws]
    return _passes_of(programs, names)


def _passes_of(programs: Programs, names: Sequence[str]) -> Programs:
    """Return what some modules do in these programs, with a share of their results at the end."""
    made: dict[int, Program] = {}
    for program in programs:
        if id(program) not in made:
            slots = (tuple(a for a in slot if a.module in names) for slot in program)
            kept = tuple(slot for slot in slots if slot)
            held = {slot[0].module for slot in kept}
            shares = ((Action(name, None, Kind.SHARE, 0),) for name in names if name in held)
            made[id(program)] = (*kept, *shares)
    return tuple(made[id(program)] for program in programs)
