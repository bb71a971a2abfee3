"""What must have happened on a rank before an action: the rules of data flow, as a table.

Decides: the dependencies of every action on actions of its own rank. Those on other ranks follow,
because a receive ends only when the other end has sent.
Relies on: `roles` for what a rank takes part in.
Leaves: time and waiting to `simulate`.
"""

from mimo_launch.layout.layout import Layout, Role
from mimo_launch.schedule.actions import ONCE, STEP, Action, Kind, Program, format_slot
from mimo_launch.schedule.roles import exchanges, needs_backward

F, B = Kind.FORWARD, Kind.BACKWARD

# What an action of a stage needs of the same stage, but for the two ends of a module.
INSIDE_A_MODULE: dict[Kind, tuple[Kind, ...]] = {
    F: (Kind.RECV_F,),
    B: (F, Kind.RECV_B),
    Kind.SEND_F: (F,),
    Kind.SEND_B: (B,),
}


def needs(layout: Layout, role: Role, action: Action) -> list[Action]:
    """Return the actions that a rank must have ended before it starts `action`."""
    if action.stage is None:
        before = _before_end if action.kind in ONCE else _before_bridge
        return before(layout, role, action)
    module = layout[action.module]
    if action.kind is Kind.FORWARD and action.stage == 0:
        return [
            Action(
                bridge.name,
                None,
                Kind.EXCHANGE_F if exchanges(layout, bridge) else Kind.RECV_F,
                bridge.of_target(action.index),
            )
            for bridge in layout.bridges_into(module.name)
        ]
    if action.kind is Kind.BACKWARD and action.stage == len(module.stages) - 1:
        # A loss makes its own gradient.
        own = Action(module.name, action.stage, F, action.index)
        return [
            own,
            *(
                Action(
                    bridge.name,
                    None,
                    Kind.EXCHANGE_B if exchanges(layout, bridge) else Kind.RECV_B,
                    bridge.of_source(action.index),
                )
                for bridge in layout.bridges_from(module.name)
            ),
        ]
    kinds = INSIDE_A_MODULE.get(action.kind, ())
    return [Action(module.name, action.stage, kind, action.index) for kind in kinds]


def first_fault(layout: Layout, role: Role, program: Program) -> tuple[int, str] | None:
    """Return the position of the first slot that comes too early or twice, and what is wrong."""
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


def _before_end(layout: Layout, role: Role, action: Action) -> list[Action]:
    """Return the last backwards, of one module or of all, before their gradients are finished."""
    if action.kind is Kind.UPDATE:
        return [Action(STEP, None, Kind.NORM, 0)]
    if action.kind is Kind.SHARE:
        return []  # It follows the forwards of an evaluation, which has no backward.
    return [
        Action(name, stage, B, layout.num_groups(layout[name]) - 1)
        for name, stage in role
        if action.module in (name, STEP) and needs_backward(layout, layout[name], stage)
    ]


def _before_bridge(layout: Layout, role: Role, action: Action) -> list[Action]:
    """Return the computes whose results travel over a bridge."""
    bridge = layout.bridges[action.module]
    last = len(layout[bridge.source].stages) - 1
    if action.kind in (Kind.SEND_F, Kind.EXCHANGE_F) and (bridge.source, last) in role:
        return [Action(bridge.source, last, F, each) for each in bridge.sources(action.index)]
    if action.kind in (Kind.SEND_B, Kind.EXCHANGE_B) and (bridge.target, 0) in role:
        return [Action(bridge.target, 0, B, each) for each in bridge.targets(action.index)]
    return []
