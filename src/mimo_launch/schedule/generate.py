"""The program of every rank: phases around pipelines, or one pipeline with its bubbles filled.

Decides: the order of the parts of a step on a rank; that inputs are received right before the
action that needs them, and results sent right after the action that makes them; which transfers
share a slot; when gradients are summed, and over which ranks.
Relies on: `pipeline` and `bubble_filling` for the order of computes, `roles` for inputs.
Leaves: proving that the programs end to `deadlock_proof`, sums to `runtime` and `optimizer`.

Where language reads all other modules (a star), a step is a sequence of groups of microbatches. In
each group, encoders that share ranks with language run first (forward, exchange); then language and
all upstream encoders run as a pipeline over the group's microbatches; then the gradients are
exchanged back and the shared encoders run backward. Without shared encoders a single group is the
whole step. The pipeline drains at the end of a group. For any other graph see `graph_order`.

Gradients are summed over dp and cp with the last backward of each stage, or under full sharding
with every backward, so that no rank keeps a whole gradient. After the computes come the remaining
sums: over tp for gradients of which each tp rank has only a term, and over the first and last stage
for a tied embedding. Then all ranks meet for the norms, and update.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mimo_launch.layout.layout import Layout, Role
from mimo_launch.layout.rank_groups import tied_ranks
from mimo_launch.schedule.actions import STEP, Action, Kind, Program, Slot
from mimo_launch.schedule.bubble_filling import bubble_orders
from mimo_launch.schedule.graph_order import graph_orders
from mimo_launch.schedule.pipeline import pipeline_order
from mimo_launch.schedule.rank_classes import classes_of
from mimo_launch.schedule.roles import (
    exchanges,
    fills_bubbles,
    groups_of,
    is_bridge_end,
    last_index,
    needs,
    needs_backward,
)
from mimo_launch.spec.base import Axis

# For a receive: all receives of its channel, in order, and its place among them.
Arrivals = Mapping[Action, tuple[Sequence[Action], int]]


def program_of(
    layout: Layout,
    role: Role,
    order: Iterable[Action],
    arrivals: Arrivals | None = None,
) -> Program:
    """Return the program that computes and exchanges in this order.

    Consecutive point-to-point actions share a slot, every other action has its own slot. So
    opposite transfers between two ranks (an activation down, a gradient up) are posted together,
    and neither side waits for the other to receive first.
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
    arrivals: Arrivals,
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
            channel, place = arrivals.get(each, ((each,), 0))
            first = place + 1
            while first > 0 and channel[first - 1] not in received:
                first -= 1
            new = channel[first : place + 1]
            received.update(new)
            yield from new
        yield action
        yield from _sends(layout, action)


def _sends(layout: Layout, action: Action) -> Iterator[Action]:
    """Yield the point-to-point sends of the results of a compute."""
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
            # The gradients of a group leave together, after its last backward.
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


def _arrivals(layout: Layout, orders: Iterable[list[Action]]) -> Arrivals:
    """Return the order in which receives between virtual stages arrive on their channels.

    One channel carries the messages of several stages in the order in which they are made, which
    may differ from the order in which they are used.
    """
    language, found = layout.language, dict[Action, tuple[Sequence[Action], int]]()
    depth, name = language.grid.size(Axis.PP), language.name
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
            found |= {each: (receives, place) for place, each in enumerate(receives)}
    return found


def _for_every_role(layout: Layout, *, backward: bool) -> Programs:
    made = {
        role: program_of(layout, role, _phases(layout, role, backward=backward))
        for role in dict.fromkeys(layout.roles)
    }
    return tuple(made[role] for role in layout.roles)


def _phases(layout: Layout, role: Role, *, backward: bool) -> Iterator[Action]:
    """Yield the computes and exchanges of a role in the phases of a step, in order."""
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
    """Return the programs that find the next token of all samples, from evaluation programs.

    Only language runs again, on the rows that the evaluation left; then the last stage sends its
    choices to the other ranks of its replica.
    """
    return _passes_of(programs, [layout.language.name])


def generate_drawing(layout: Layout, programs: Programs) -> Programs:
    """Return the programs of one pass of the generators that draw.

    Only these generators run again, on the rows that the evaluation left; then their last stages
    send their results to the other ranks of their replicas.
    """
    names = [module.name for module in layout.modules if module.draws]
    return _passes_of(programs, names)


def _passes_of(programs: Programs, names: Sequence[str]) -> Programs:
    """Return the computes of some modules in these programs, then a `SHARE` of their results."""
    made: dict[int, Program] = {}
    for program in programs:
        if id(program) not in made:
            slots = (tuple(a for a in slot if a.module in names) for slot in program)
            kept = tuple(slot for slot in slots if slot)
            held = {slot[0].module for slot in kept}
            shares = ((Action(name, None, Kind.SHARE, 0),) for name in names if name in held)
            made[id(program)] = (*kept, *shares)
    return tuple(made[id(program)] for program in programs)


def completed(layout: Layout, programs: Programs) -> Programs:
    """Return training programs, completed by the actions that finish a step."""
    # Ranks that hold the same stages finish a step in the same way.
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


def _end(layout: Layout, rank: int) -> tuple[Action, ...]:
    """Return the actions of a rank after all its backwards."""
    actions = []
    for module in layout.modules_of(rank):
        if module.frozen or not needs_backward(layout, module):
            continue
        if module.grid.size(Axis.TP) > 1:
            actions.append(Action(module.name, None, Kind.SUM_TP, 0))
        if module.is_language and rank in tied_ranks(layout):
            actions.append(Action(module.name, None, Kind.SUM_TIED, 0))
    return (*actions, Action(STEP, None, Kind.NORM, 0), Action(STEP, None, Kind.UPDATE, 0))
