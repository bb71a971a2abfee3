"""Floating-point operations of one forward and one backward of a stage.

Decides: what a backward costs, whatever is frozen.
Relies on: `kinds` for the operations of a forward.
Leaves: seconds to `cost_model`.
"""

from collections.abc import Mapping

from mimo_launch.estimate.parameters import ends_of
from mimo_launch.kinds.layer import Flops, LayerKind, Workload
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.stages import Stage
from mimo_launch.schedule.roles import needs_backward
from mimo_launch.spec.model import Spec


def forward_flops(spec: Spec, stage: Stage, work: Workload) -> Flops:
    """Return the operations of one forward of a stage."""
    return sum(forward_by_kind(spec, stage, work).values(), Flops())


def forward_by_kind(spec: Spec, stage: Stage, work: Workload) -> Mapping[LayerKind, Flops]:
    """Return the operations of one forward by kinds of layers.

    What stands around the layers is with blocks.
    """
    kind = kind_of(spec.modules[stage.module].model)
    return kind.forward_flops(stage.layers, ends_of(spec, stage), work)


def backward_flops(
    spec: Spec, layout: Layout, module: ModuleLayout, stage: Stage, forward: Flops
) -> Flops:
    """Return the operations of one backward of a stage whose forward has these.

    Twice the forward: gradients of inputs and of weights. A frozen language model has only those of
    inputs (and all of attention, which has no weights); recomputing is not counted.
    """
    if not needs_backward(layout, module, stage.index):
        return Flops()
    if spec.modules[module.name].frozen == "except_projector":
        return Flops(projector=2 * forward.projector)
    weights = 1 if module.frozen else 2
    return Flops(
        linear=weights * forward.linear,
        attention=2 * forward.attention,
        head=weights * forward.head,
        patch=2 * forward.patch,
        projector=2 * forward.projector,
    )
