"""What a rank takes part in: its stages, those with gradients, and its bridges.

Decides: which stages run backward, and how the rows of a bridge travel.
Relies on: `layout`.
Leaves: the order of work to `pipeline` and `bubble_filling`.
"""

from dataclasses import dataclass

from mimo_launch.layout.bridge import Bridge
from mimo_launch.layout.layout import Layout, ModuleLayout, Role, cached_in_layout


@dataclass(frozen=True, slots=True)
class MicrobatchGroup:
    """Consecutive microbatches that an encoder in phases works on at once."""

    index: int
    microbatches: range


def needs_backward(layout: Layout, module: ModuleLayout, stage: int | None = None) -> bool:
    """Return whether a module, or one of its stages, has any gradient to compute.

    A frozen module still passes gradients to modules that it reads and that train. Stages of an
    encoder in front of a trainable projector have none.
    """
    if trains_before(layout, module.name):
        return True
    return not module.frozen and (stage is None or stage >= module.first_trained)


@cached_in_layout
def trains_before(layout: Layout, name: str) -> bool:
    """Return whether anything trains among the modules that a module reads, and behind them."""
    return any(needs_backward(layout, layout[source]) for source in layout[name].reads)


def fills_bubbles(layout: Layout, module: ModuleLayout) -> bool:
    """Return whether an encoder runs in the idle slots of the language pipeline.

    It does if it shares ranks with language under `bubble_filling`; without a pipeline, no rank
    idles. In a graph that is no star one order of all work fills them for every module.
    """
    if not layout.is_star:
        return False
    piped = layout.schedule == "bubble_filling" and layout.language.grid.size("pp") > 1
    return piped and module.in_phases


def exchanges(layout: Layout, bridge: Bridge) -> bool:
    """Return whether the rows of a bridge travel in a collective between phases.

    All other modules send and receive pairwise while the pipeline runs.
    """
    source = layout[bridge.source]
    return layout.is_star and source.in_phases and not fills_bubbles(layout, source)


def groups_of(layout: Layout) -> tuple[MicrobatchGroup, ...]:
    """Return the groups that encoders in phases run on; without any, the step is one group."""
    total = layout.samples.microbatches
    size = next((m.group_size for m in layout.encoders if m.in_phases), total)
    return tuple(
        MicrobatchGroup(index, range(index * size, (index + 1) * size))
        for index in range(total // size)
    )


def is_bridge_end(layout: Layout, bridge: Bridge, role: Role) -> bool:
    """Return whether a rank with this role sends or receives rows of this bridge."""
    return (bridge.source, len(layout[bridge.source].stages) - 1) in role or (
        bridge.target,
        0,
    ) in role
