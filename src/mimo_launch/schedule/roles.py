"""Rules of data flow: the part of each rank, and the actions that must precede an action.

Decides: which stages run backward, and how the rows of a bridge travel; the dependencies of every
action on actions of its own rank. Dependencies on other ranks follow, because a receive ends only
when the other end has sent.
Relies on: `layout`.
Leaves: the order of work to `pipeline` and `bubble_filling`, time and waiting to `deadlock_proof`.
"""

from dataclasses import dataclass

from mimo_launch.layout.layout import Layout, ModuleLayout, Role, cached_in_layout
from mimo_launch.layout.samples import Bridge
from mimo_launch.schedule.actions import ONCE, STEP, Action, Kind, Program, format_slot
from mimo_launch.spec.base import Axis


@dataclass(frozen=True, slots=True)
class MicrobatchGroup:
    """Consecutive microbatches that an encoder in phases runs together."""

    index: int
    microbatches: range


def needs_backward(layout: Layout, module: ModuleLayout, stage: int | None = None) -> bool:
    """Return whether a module, or one of its stages, has any gradient to compute.

    A frozen module still passes gradients to modules that it reads and that train. Stages before
    `first_trained`, as in an encoder where only the projector trains, have none.
    """
    if trains_before(layout, module.name):
        return True
    return not module.frozen and (stage is None or stage >= module.first_trained)


@cached_in_layout
def trains_before(layout: Layout, name: str) -> bool:
    """Return whether any module trains that this one reads, directly or through others."""
    return any(needs_backward(layout, layout[source]) for source in layout[name].reads)


def fills_bubbles(layout: Layout, module: ModuleLayout) -> bool:
    """Return whether an encoder runs in the idle slots of the language pipeline.

    It does if it shares ranks with language under `bubble_filling`; without a pipeline, no rank
    idles. In a graph that is not a star, `graph_order` fills idle slots for every module.
    """
    if not layout.is_star:
        return False
    piped = layout.schedule == "bubble_filling" and layout.language.grid.size(Axis.PP) > 1
    return piped and module.in_phases


def exchanges(layout: Layout, bridge: Bridge) -> bool:
    """Return whether the rows of a bridge travel in a collective between phases.

    On all other bridges ranks send and receive pairwise while the pipeline runs.
    """
    source = layout[bridge.source]
    return layout.is_star and source.in_phases and not fills_bubbles(layout, source)


def groups_of(layout: Layout) -> tuple[MicrobatchGroup, ...]:
    """Return the groups on which encoders in phases run; without any, the step is one group."""
    total = layout.samples.microbatches
    size = next((m.group_size for m in layout.encoders if m.in_phases), total)
    return tuple(
        MicrobatchGroup(index, range(index * size, (index + 1) * size))
        for index in range(total // size)
    )


def last_index(layout: Layout, module: ModuleLayout) -> int:
    """Return the index of the last backward of every stage of a module."""
    return layout.num_groups(module) - 1


def is_bridge_end(layout: Layout, bridge: Bridge, role: Role) -> bool:
    """Return whether a rank with this role sends or receives rows of this bridge."""
    return (bridge.source, len(layout[bridge.source].stages) - 1) in role or (
        bridge.target,
        0,
    ) in role


F, B = Kind.FORWARD, Kind.BACKWARD

# What an action needs in its own stage, except at the two ends of a module.
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
        # With a loss, the last stage makes its own gradient.
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
    """Return the position of the first slot that comes too early or twice, and the fault."""
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
    """Return the actions before the end of a step: mostly last backwards, of one or all modules."""
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
    """Return the computes with results that travel over a bridge."""
    bridge = layout.bridges[action.module]
    last = len(layout[bridge.source].stages) - 1
    if action.kind in (Kind.SEND_F, Kind.EXCHANGE_F) and (bridge.source, last) in role:
        return [Action(bridge.source, last, F, each) for each in bridge.sources(action.index)]
    if action.kind in (Kind.SEND_B, Kind.EXCHANGE_B) and (bridge.target, 0) in role:
        return [Action(bridge.target, 0, B, each) for each in bridge.targets(action.index)]
    return []
