"""The program of every rank: phases around pipelines, or one pipeline with its bubbles filled.

Decides: the order of the parts of a step on a rank; that inputs are received right before the
action that needs them, and results sent right after the action that makes them, except that rows
which meet in one compute of language travel together; which transfers share a slot; when gradients
are summed, and over which ranks.
Relies on: `pipeline`, `bubble_filling` and `graph_order` for the order of computes, `data_flow`.
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

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TypeVar

from mimo_launch.layout.layout import Layout, Role
from mimo_launch.schedule.actions import Action, Kind, Program, Slot
from mimo_launch.schedule.bubble_filling import bubble_orders
from mimo_launch.schedule.data_flow import (
    DataFlow,
    fills_bubbles,
    flow_of,
    needs_backward,
)
from mimo_launch.schedule.graph_order import graph_orders
from mimo_launch.schedule.pipeline import pipeline_order
from mimo_launch.schedule.rank_classes import classes_of
from mimo_launch.schedule.step_end import end_actions
from mimo_launch.spec.base import Axis

Key = TypeVar("Key", bound=Hashable)
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
    for action in _with_transfers(flow_of(layout), role, order, arrivals or {}):
        joins = not (action.kind.is_compute or action.kind.is_collective)
        if joins and open_slot:
            slots[-1] = (*slots[-1], action)
        else:
            slots.append((action,))
        open_slot = joins
    return tuple(slots)


def _with_transfers(
    flow: DataFlow, role: Role, order: Iterable[Action], arrivals: Arrivals
) -> Iterator[Action]:
    """Yield actions, each compute with the receives before it and the sends after it."""
    received: set[Action] = set()
    for _, computes in groupby(order, partial(_meeting_point, flow)):
        together = list(computes)
        if not together[0].kind.is_compute:
            yield from together
            continue
        for action in together:
            yield from _receives(flow, role, action, arrivals, received)
        yield from together
        for action in together:
            yield from flow.sends(action)


def _meeting_point(flow: DataFlow, action: Action) -> Hashable:
    """Return the compute of language that reads the rows of an upstream encoder, or the action.

    Language sends the gradients of such rows together, so encoders on one rank must receive them
    together. If one of them still had rows to send before that, both sides could wait.
    """
    if not action.kind.is_compute or flow.layout[action.module].in_phases:
        return action
    edges = flow.out[action.module, action.stage or 0]
    if not flow.layout.is_star or len(edges) != 1 or not edges[0].is_bridge:
        return action
    return edges[0].target, action.kind, edges[0].path.of_source(action.index)


def _receives(
    flow: DataFlow, role: Role, action: Action, arrivals: Arrivals, received: set[Action]
) -> Iterator[Action]:
    """Yield the receives before a compute; a group of microbatches arrives before its first."""
    for each in flow.needs(role, action):
        if each.kind not in (Kind.RECV_F, Kind.RECV_B):
            continue
        channel, place = arrivals.get(each, ((each,), 0))
        first = place + 1
        while first > 0 and channel[first - 1] not in received:
            first -= 1
        new = channel[first : place + 1]
        received.update(new)
        yield from new


Programs = tuple[Program, ...]


def generate(layout: Layout) -> Programs:
    """Return the training program of each rank; ranks that do the same share one object."""
    if any(fills_bubbles(layout, encoder) for encoder in layout.encoders):
        classes = classes_of(layout)
        return _made(layout, classes, dict(enumerate(bubble_orders(layout, classes))))
    return _by_role(layout, backward=True)


def generate_forward(layout: Layout) -> Programs:
    """Return the program of each rank for a step without gradients (evaluation)."""
    return _by_role(layout, backward=False)


def _by_role(layout: Layout, *, backward: bool) -> Programs:
    """Return programs in phases, or for any graph in the order of one clock."""
    if layout.is_star:
        roles = dict.fromkeys(layout.roles)
        phases = {role: _phases(layout, role, backward=backward) for role in roles}
        return _made(layout, layout.roles, phases)
    orders = graph_orders(layout, backward=backward)
    return _made(layout, layout.roles, orders, _arrivals(layout, orders.values()))


def _made(
    layout: Layout,
    keys: Sequence[Key],
    orders: Mapping[Key, Iterable[Action]],
    arrivals: Arrivals | None = None,
) -> Programs:
    """Return the program of each rank, one object for all ranks of a key; all have one role."""
    roles = dict(zip(keys, layout.roles, strict=True))
    made = {key: program_of(layout, roles[key], order, arrivals) for key, order in orders.items()}
    return tuple(made[key] for key in keys)


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
            if not forward and not needs_backward(layout, language, to):
                continue  # Nobody sends a gradient to a frozen stage.
            kind = Kind.RECV_F if forward else Kind.RECV_B
            lower = Action(name, to, kind, action.index)
            brought.setdefault((kind, language.pp_index(to)), []).append(lower)
        for receives in brought.values():
            found |= {each: (receives, place) for place, each in enumerate(receives)}
    return found


def _phases(layout: Layout, role: Role, *, backward: bool) -> Iterator[Action]:
    """Yield the computes and exchanges of a role in the phases of a step, in order.

    In a phase encoders run on a group of microbatches; without any, the step is one group.
    """
    encoders, total = [e for e in layout.encoders if e.in_phases], layout.samples.microbatches
    size = encoders[0].group_size if encoders else total
    bridges = flow_of(layout).bridges
    for group in range(total // size):
        for encoder in encoders:
            edge = bridges[encoder.name]
            for name, stage in role:
                if name == encoder.name:
                    yield Action(name, stage, Kind.FORWARD, group)
            if edge.in_collective and (edge.source in role or edge.target in role):
                yield Action(encoder.name, None, Kind.EXCHANGE_F, group)
        microbatches = range(group * size, (group + 1) * size)
        yield from pipeline_order(layout, role, microbatches, backward=backward)
        for encoder in encoders:
            edge = bridges[encoder.name]
            if not backward or not edge.returns:
                continue
            if edge.source in role or edge.target in role:
                yield Action(encoder.name, None, Kind.EXCHANGE_B, group)
            for name, stage in role:
                if name == encoder.name and needs_backward(layout, encoder, stage):
                    yield Action(name, stage, Kind.BACKWARD, group)


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
        if module.sharding.every_backward or action.index == layout.num_groups(module) - 1:
            reduce = Action(action.module, action.stage, Kind.REDUCE, action.index)
            slots[-1] = (action, reduce)
    modules = layout.modules_of(rank)
    trained = (each for each in modules if not each.frozen and needs_backward(layout, each))
    return (*slots, *((action,) for action in end_actions(layout, rank, trained)))
