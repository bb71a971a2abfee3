"""From the order of computes to a program: sends and receives, put in by rule.

Decides: that inputs are received right before the action that needs them, that results are sent
right after the action that makes them, and which transfers share a slot.
Relies on: `dependencies` for inputs.
Leaves: the order of computes and exchanges to `pipeline` and `bubble_filling`.
"""

from collections.abc import Iterable, Iterator

from mimo_launch.layout.layout import Layout, Role
from mimo_launch.schedule.actions import Action, Kind, Program, Slot
from mimo_launch.schedule.dependencies import needs
from mimo_launch.schedule.roles import exchanges, needs_backward


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
