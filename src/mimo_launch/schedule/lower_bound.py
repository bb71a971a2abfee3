"""The shortest time that a step can take, in any order of its work.

Decides: a lower bound for every schedule of a layout.
Relies on: the costs of single actions.
Leaves: how close a schedule comes to it to `simulate`.
"""

from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.roles import needs_backward
from mimo_launch.schedule.simulation_result import Costs

F, B = Kind.FORWARD, Kind.BACKWARD


def lower_bound(layout: Layout, costs: Costs) -> float:
    """Return the larger of two times that every step takes.

    One: the first group's forward through the slowest encoder, a microbatch's forward and backward
    through the other ranks of the language pipeline, the work of one of its ranks, and the last
    group's backward. Two: the work of the busiest rank.
    """
    language = layout.language
    first = max((_way(layout, costs, each, F) for each in layout.encoders), default=0.0)
    last = max((_way(layout, costs, each, B) for each in layout.encoders), default=0.0)
    once = _cost(layout, costs, language, 0, F) + _cost(layout, costs, language, 0, B)
    held = len(language.stages) // language.grid.size("pp")
    latency = (language.grid.size("pp") - 1) * once
    through = first + latency + layout.samples.microbatches * held * once + last
    work = (
        sum(
            _cost(layout, costs, module, stage, kind) * layout.num_groups(module)
            for module, stage in ((layout[name], stage) for name, stage in role)
            for kind in (F, B)
        )
        for role in set(layout.roles)
    )
    return max(through, *work)


def _cost(layout: Layout, costs: Costs, module: ModuleLayout, stage: int, kind: Kind) -> float:
    """Return the time of one action of a stage: 0 for the backward of one that has none."""
    if kind is B and not needs_backward(layout, module, stage):
        return 0.0
    return costs.of(Action(module.name, stage, kind, 0))


def _way(layout: Layout, costs: Costs, module: ModuleLayout, kind: Kind) -> float:
    """Return the time of one group through all stages of an encoder."""
    return sum(_cost(layout, costs, module, stage.index, kind) for stage in module.stages)
