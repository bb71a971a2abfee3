"""The order of forwards and backwards on each rank of a running pipeline.

Decides: the order of upstream encoders, from the order of language.
Relies on: `orders` for the order of language, `layout` for who holds which stage.
Leaves: transfers, and encoders that share ranks with language, to `generate`.

The order of upstream encoders follows from a clock that ticks once per stage. If language stage 0
takes a microbatch at tick t and has its gradient at tick u, an encoder stage that is d stages ahead
of it runs the forward at t - d and the backward at u + d. On groups of k microbatches a stage takes
k ticks: it runs at t - d k, with t of the first microbatch of the group, and at u + d k, with u of
the last. So each input is made before it is used, and every rank works in the order of one clock:
ranks cannot wait for each other in a circle. If ticks were counted from the first stage of each
encoder, shallow encoders would run too far ahead of language.
"""

from collections.abc import Mapping

from mimo_launch.layout.layout import Layout, ModuleLayout, Role, cached_in_layout
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.clock import times_in_order
from mimo_launch.schedule.data_flow import flow_of, needs_backward
from mimo_launch.schedule.orders import PipelineRank, works_of
from mimo_launch.spec.base import Axis

F, B = Kind.FORWARD, Kind.BACKWARD


def pipeline_order(
    layout: Layout, role: Role, microbatches: range, *, backward: bool = True
) -> list[Action]:
    """Return the computes of a role for some microbatches, without encoders in phases."""
    stages = [(layout[name], stage) for name, stage in role if not layout[name].in_phases]
    backward = backward and needs_backward(layout, layout.language)
    own = next((stage for module, stage in stages if module.is_language), None)
    if own is not None:
        return _language(layout, layout.language.pp_index(own), microbatches, backward=backward)
    return _upstream(layout, stages, microbatches, backward=backward)


def _language(layout: Layout, index: int, microbatches: range, *, backward: bool) -> list[Action]:
    """Return the computes of language on the ranks at a position along pp."""
    language = layout.language
    stages = language.stages_at(index)
    depth = language.grid.size(Axis.PP)
    rank = PipelineRank(depth, len(stages), index, len(microbatches))
    return [
        Action(language.name, stages[chunk].index, kind, microbatches[position])
        for chunk, kind, position in works_of(layout.schedule, rank, backward=backward)
        if kind is F or needs_backward(layout, language, stages[chunk].index)
    ]


def _upstream(
    layout: Layout,
    stages: list[tuple[ModuleLayout, int]],
    microbatches: range,
    *,
    backward: bool,
) -> list[Action]:
    """Merge the work of encoder stages by the common clock.

    Within a tick, all ranks have the same order.
    """
    language = layout.language
    num_chunks = len(language.stages) // language.grid.size(Axis.PP)
    starts = _ticks_of_language(layout, len(microbatches), backward=backward)
    keyed = []
    for place, (module, stage) in enumerate(stages):
        size = module.group_size
        ahead = distance_to_language(module, stage) * size * num_chunks
        for first in range(0, len(microbatches), size):
            group = microbatches[first] // size
            tick = starts[Action(language.name, 0, F, first)]
            keyed.append(((tick - ahead, 0, place), Action(module.name, stage, F, group)))
            if backward and needs_backward(layout, module, stage):
                tick = starts[Action(language.name, 0, B, first + size - 1)]
                keyed.append(((tick + ahead, 1, place), Action(module.name, stage, B, group)))
    return [action for _, action in sorted(keyed, key=lambda each: each[0])]


def distance_to_language(module: ModuleLayout, stage: int) -> int:
    """Return the number of stages from an encoder stage to the first stage of language."""
    return len(module.stages) - stage


@cached_in_layout
def _ticks_of_language(layout: Layout, total: int, *, backward: bool) -> Mapping[Action, float]:
    """Return when the stages of language start each action, if their inputs are always there."""
    language, flow = layout.language, flow_of(layout)
    orders = [
        _language(layout, index, range(total), backward=backward)
        for index in range(language.grid.size(Axis.PP))
    ]

    def inputs(action: Action) -> list[Action]:
        return [each for each in flow.inputs(action) if each.module == language.name]

    return times_in_order(orders, inputs)
