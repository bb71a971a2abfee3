"""The program of every rank: phases around pipelines, or one pipeline with its bubbles filled.

Decides: how the parts of a step follow each other on a rank; that inputs are received right before
the action that needs them, that results are sent right after the action that makes them, and which
transfers share a slot.
Relies on: `pipeline` and `bubble_filling` for the order of computes, `dependencies` for inputs.
Leaves: proving that the programs end to `simulate`.

A step is a sequence of groups of microbatches. In each group, encoders that share ranks with
language run first (forward, exchange); then language and all upstream encoders run as a pipeline
over the group's microbatches; then the gradients are exchanged back and the shared encoders run
backward. Without shared encoders the one group is the whole step. The pipeline drains at the end of
a group.
"""

from collections.abc import Callable, Iterable, Iterator

from mimo_launch.layout.layout import Layout, ModuleLayout, Role
from mimo_launch.schedule.actions import Action, Kind, Program, Slot
from mimo_launch.schedule.bubble_filling import bubble_orders
from mimo_launch.schedule.dependencies import needs
from mimo_launch.schedule.pipeline import pipeline_order
from mimo_launch.schedule.rank_classes import classes_of
from mimo_launch.schedule.roles import (
    exchanges,
    fills_bubbles,
    groups_of,
    is_bridge_end,
    needs_backward,
)


def program_of(layout: Layout, role: Role, order: Iterable[Action]) -> Program:
    """Return the program that computes and exchanges in this order."""
    return _coalesced(_with_transfers(layout, role, order))


def _with_transfers(layout: Layout, role: Role, order: Iterable[Action]) -> Iterator[Action]:
    received: set[Action] = set()
    for action in order:
        if action.kind.is_compute:
            for each in needs(layout, role, action):
                # A group of microbatches arrives once, before the first of them.
                if each.kind in (Kind.RECV_F, Kind.RECV_B) and each not in received:
                    received.add(each)
                    yield each
        yield action
        if action.kind is Kind.FORWARD:
            yield from _after_forward(layout, action)
        elif action.kind is Kind.BACKWARD:
            yield from _after_backward(layout, action)


def _after_forward(layout: Layout, action: Action) -> Iterator[Action]:
    module = layout[action.module]
    if action.stage != len(module.stages) - 1:
        yield Action(module.name, action.stage, Kind.SEND_F, action.index)
    elif not module.is_language and not exchanges(layout, module):
        yield Action(module.name, None, Kind.SEND_F, action.index)


def _after_backward(layout: Layout, action: Action) -> Iterator[Action]:
    module = layout[action.module]
    if action.stage:
        if action.stage > module.first_trained:
            yield Action(module.name, action.stage, Kind.SEND_B, action.index)
    elif module.is_language:
        for encoder in layout.encoders:
            group, place = divmod(action.index, encoder.group_size)
            is_pairwise = not exchanges(layout, encoder) and needs_backward(layout, encoder)
            # The gradients of a group leave together, after its last microbatch.
            if is_pairwise and place == encoder.group_size - 1:
                yield Action(encoder.name, None, Kind.SEND_B, group)


def _coalesced(actions: Iterator[Action]) -> Program:
    """Put point-to-point actions that follow each other into one slot, all else into its own.

    Opposite transfers between two ranks (an activation down, a gradient up) are then posted
    together, so that neither side waits for the other to receive first.
    """
    slots: list[Slot] = []
    open_slot = False
    for action in actions:
        joins = not (action.kind.is_compute or action.kind.is_collective)
        if joins and open_slot:
            slots[-1] = (*slots[-1], action)
        else:
            slots.append((action,))
        open_slot = joins
    return tuple(slots)


Programs = tuple[Program, ...]


def generate(layout: Layout) -> Programs:
    """Return the training program of each rank; ranks that do the same share one object."""
    if any(fills_bubbles(layout, encoder) for encoder in layout.encoders):
        return _with_filled_bubbles(layout)
    return _for_every_role(layout, _step)


def generate_forward(layout: Layout) -> Programs:
    """Return the program of each rank for a step without gradients (evaluation)."""
    return _for_every_role(layout, _forward_step)


def _for_every_role(layout: Layout, order: Callable[[Layout, Role], list[Action]]) -> Programs:
    made = {
        role: program_of(layout, role, order(layout, role)) for role in dict.fromkeys(layout.roles)
    }
    return tuple(made[role] for role in layout.roles)


def _with_filled_bubbles(layout: Layout) -> Programs:
    classes = classes_of(layout)
    first = {each: rank for rank, each in reversed(list(enumerate(classes)))}
    made = {
        each: program_of(layout, layout.roles[first[each]], order)
        for each, order in enumerate(bubble_orders(layout, classes))
    }
    return tuple(made[each] for each in classes)


def _step(layout: Layout, role: Role) -> list[Action]:
    actions = []
    for group in groups_of(layout):
        actions += _phases_forward(layout, role, group.index)
        actions += pipeline_order(layout, role, group.microbatches)
        for encoder in layout.encoders:
            if encoder.in_phases and needs_backward(layout, encoder):
                actions += _phase_backward(layout, encoder, role, group.index)
    return actions


def _forward_step(layout: Layout, role: Role) -> list[Action]:
    actions = []
    for group in groups_of(layout):
        actions += _phases_forward(layout, role, group.index)
        actions += pipeline_order(layout, role, group.microbatches, backward=False)
    return actions


def _phases_forward(layout: Layout, role: Role, group: int) -> list[Action]:
    actions = []
    for encoder in layout.encoders:
        if not encoder.in_phases:
            continue
        actions += [Action(n, stage, Kind.FORWARD, group) for n, stage in role if n == encoder.name]
        if exchanges(layout, encoder) and is_bridge_end(layout, encoder, role):
            actions.append(Action(encoder.name, None, Kind.EXCHANGE_F, group))
    return actions


def _phase_backward(layout: Layout, encoder: ModuleLayout, role: Role, group: int) -> list[Action]:
    actions = []
    if is_bridge_end(layout, encoder, role):
        actions.append(Action(encoder.name, None, Kind.EXCHANGE_B, group))
    actions += [
        Action(name, stage, Kind.BACKWARD, group)
        for name, stage in role
        if name == encoder.name and needs_backward(layout, encoder, stage)
    ]
    return actions
