"""What `plan.plan` says of the layers of a module, kind by kind.

Decides: that one layer stands for all of its kind, on the tp rank with the largest part.
Relies on: `estimate.parameters`, `estimate.flops` and `estimate.memory`, which know a stage.
Leaves: seconds to `estimate.cost_model`, drawing to `cli`.
"""

from collections.abc import Iterator
from dataclasses import replace

from mimo_launch.drawing.layer_row_types import LayerRow
from mimo_launch.estimate.flops import backward_flops, forward_flops
from mimo_launch.estimate.memory import kept_by_layers
from mimo_launch.estimate.parameters import stage_weights
from mimo_launch.estimate.workload import workload
from mimo_launch.kinds.layer import Workload
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.stages import Stage
from mimo_launch.layout.step_data import SampleData
from mimo_launch.spec.model import Spec


def rows_of_layers(spec: Spec, layout: Layout, sample: SampleData) -> tuple[LayerRow, ...]:
    """Return a row for each kind of layer of each module, in the order of their first layers."""
    return tuple(
        row
        for module in layout.modules
        for row in _rows(spec, layout, module, workload(layout, module, sample))
    )


def _rows(spec: Spec, layout: Layout, module: ModuleLayout, work: Workload) -> Iterator[LayerRow]:
    kind, tp = kind_of(spec.modules[module.name].model), module.grid.size("tp") - 1
    layers: dict[str, list[Stage]] = {}
    for stage in module.stages:
        for number in stage.layers:
            # Each as a stage of its own, with neither end.
            alone = replace(stage, first_layer=number, num_layers=1, is_first=False, is_last=False)
            layers.setdefault(kind.layer_name(number), []).append(alone)
    for name, alike in layers.items():
        flops = 0.0
        for each in alike:
            forward = forward_flops(spec, each, work)
            flops += (forward + backward_flops(spec, layout, module, each, forward)).total
        one = alike[0]
        yield LayerRow(
            module=module.name,
            kind=name,
            layers=len(alike),
            has_experts=kind.has_experts(one.first_layer),
            parameters=stage_weights(spec, one, tp).numel,
            tflop=flops * work.forwards * module.grid.size("dp") / 1e12,
            kept_bytes=kept_by_layers(spec, layout, module, one, work, tp),
        )
