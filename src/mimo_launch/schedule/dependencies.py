"""What must have happened on a rank before an action: the rules of data flow, as a table.

Decides: the dependencies of every action on actions of its own rank; those on other ranks follow,
because a receive ends only when the other end has sent.
Relies on: `roles` for what a rank takes part in.
Leaves: time and waiting to `simulate`.
"""

from mimo_launch.layout.layout import Layout, Role
from mimo_launch.schedule.actions import ONCE, STEP, Action, Kind, Program, format_slot
from mimo_launch.schedule.roles import exchanges, is_bridge_end, microbatches_of, needs_backward

F, B = Kind.FORWARD, Kind.BACKWARD


def needs(layout: Layout, role: Role, action: Action) -> list[Action]:
    """Return the actions that a rank must have ended before it starts `action`."""
    if action.stage is None:
        of_stages = _of_end if action.kind in ONCE else _of_bridge
        return of_stages(layout, role, action)
    if action.kind is Kind.FORWARD:
        return _of_forward(layout, action)
    if action.kind is Kind.BACKWARD:
        return [_with(action, F), *_gradient(layout, action)]
    if action.kind is Kind.SEND_F:
        return [_with(action, F)]
    return [_with(action, B)] if action.kind is Kind.SEND_B else []


def first_fault(layout: Layout, role: Role, program: Program) -> tuple[int, str] | None:
    """Return the place of the first slot that comes too early or a second time, and why."""
    done: set[Action] = set()
    for position, slot in enumerate(program):
        for action in slot:
            if action in done:
                return position, f"runs {action} a second time"
            missing = [each for each in needs(layout, role, action) if each not in done]
            if missing:
                return position, f"comes to {action} before {format_slot(tuple(missing))}"
        done.update(slot)
    return None


def _of_end(layout: Layout, role: Role, action: Action) -> list[Action]:
    """Return the last backwards, of one module or of all, whose gradients are to be finished."""
    if action.kind is Kind.UPDATE:
        return [Action(STEP, None, Kind.NORM, 0)]
    if action.kind is Kind.SHARE:
        return []  # Of the forwards of an evaluation, which has no backward.
    return [
        Action(name, stage, B, layout.num_groups(layout[name]) - 1)
        for name, stage in role
        if action.module in (name, STEP) and needs_backward(layout, layout[name], stage)
    ]


def _with(action: Action, kind: Kind) -> Action:
    return Action(action.module, action.stage, kind, action.index)


def _of_forward(layout: Layout, action: Action) -> list[Action]:
    """Return what brings the input of a stage."""
    if action.stage:
        return [_with(action, Kind.RECV_F)]
    if action.module != layout.language.name:
        return []
    return [
        Action(
            encoder.name,
            None,
            Kind.EXCHANGE_F if exchanges(layout, encoder) else Kind.RECV_F,
            action.index // encoder.group_size,
        )
        for encoder in layout.encoders
    ]


def _gradient(layout: Layout, action: Action) -> list[Action]:
    """Return what brings the gradient of a stage's output; the loss makes its own."""
    module = layout[action.module]
    if action.stage != len(module.stages) - 1:
        return [_with(action, Kind.RECV_B)]
    if module.is_language:
        return []
    kind = Kind.EXCHANGE_B if exchanges(layout, module) else Kind.RECV_B
    return [Action(module.name, None, kind, action.index)]


def _of_bridge(layout: Layout, role: Role, action: Action) -> list[Action]:
    """Return the computes whose results go over a bridge."""
    encoder, language = layout[action.module], layout.language.name
    last = len(encoder.stages) - 1
    if not is_bridge_end(layout, encoder, role):
        return []
    if action.kind in (Kind.SEND_F, Kind.EXCHANGE_F) and (encoder.name, last) in role:
        return [Action(encoder.name, last, F, action.index)]
    if action.kind in (Kind.SEND_B, Kind.EXCHANGE_B) and (language, 0) in role:
        return [Action(language, 0, B, each) for each in microbatches_of(encoder, action.index)]
    return []
