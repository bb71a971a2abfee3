"""Floating-point operations of the model in real steps, as `plan` counts them.

Decides: that a step costs what its own images and records cost, padding included.
Relies on: `estimate.flops` for the operations of a stage.
Leaves: the share of a peak to `measure`.
"""

from mimo_launch.estimate.flops import backward_flops, forward_flops
from mimo_launch.estimate.workload import language_spans
from mimo_launch.kinds.layer import Workload
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.step_data import StepData
from mimo_launch.spec.model import Spec


def step_flops(spec: Spec, layout: Layout, data: StepData) -> dict[str, float]:
    """Return the operations of one step by module: forward and backward, nothing recomputed."""
    return {module.name: _module_flops(spec, layout, data, module) for module in layout.modules}


def _module_flops(spec: Spec, layout: Layout, data: StepData, module: ModuleLayout) -> float:
    work, total = _work(layout, data, module), 0.0
    for stage in module.stages:
        forward = forward_flops(spec, stage, work)
        total += forward.total + backward_flops(spec, layout, module, stage, forward).total
    return total


def _work(layout: Layout, data: StepData, module: ModuleLayout) -> Workload:
    """Return the whole step as if it were one forward: operations of samples only add up."""
    if module.is_language:
        spans = tuple(n for s in data.samples for n in language_spans(s, layout.seq))
        rows = 0
    else:
        images = [image.rows for s in data.samples for image in s.spans.get(module.name, ())]
        spans = tuple(n * module.patches_per_row + module.class_token for n in images)
        rows = sum(images)
    return Workload(spans=spans, held=sum(spans), rows=rows, forwards=1)
