"""What `plan` says about the layers of a module, kind by kind, and about its experts.

Decides: which facts there are; their names are the keys of `plan --json` (docs/plan-json.md); that
one layer represents all of its kind, on the tp rank with the largest part; that the load of the
experts is balanced, so that every rank sends the same amount.
Relies on: `estimate.parameters`, `workload` and `activations`, which estimate a stage.
Leaves: seconds to `estimate.cost_model`, drawing to `cli`.
"""

from dataclasses import replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.activations import Activations
from mimo_launch.estimate.parameters import stage_weights
from mimo_launch.estimate.step_work import StepWork
from mimo_launch.estimate.workload import backward_flops, forward_flops
from mimo_launch.kinds.layer import even_cut
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.stages import Stage
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import ExpertGrid, Grid, Spec


@frozen(kw_only=True)
class LayerRow:
    """The layers of one kind in a module.

    `parameters` counts the parameters of one layer on a rank before sharding over dp x cp,
    including the rank's own experts. `tflop` is the work of all these layers in a step, forward and
    backward, on all ranks. `kept_bytes` is the memory that one layer keeps on a rank from a forward
    to its backward.
    """

    module: str
    kind: str
    layers: int
    has_experts: bool
    parameters: int
    tflop: float
    kept_bytes: int


@frozen(kw_only=True)
class ExpertPlace:
    """The ranks that hold the experts from `first_expert` to `last_expert` of their layers."""

    first_expert: int
    last_expert: int
    ranks: tuple[int, ...]


@frozen(kw_only=True)
class ExpertsRow:
    """The experts of a module and the ranks that hold them.

    `layers` layers have `experts` experts each; a token goes to `top_k` of them. `ep`, `tp` and
    `dp` are the sizes of the expert grid. A rank holds `per_rank` experts of a layer; `places` says
    which. `parameters` counts the whole module, `active_parameters` the parameters that one token
    uses. `sent_bytes` are the bytes that a rank sends to others in the all-to-alls of a step,
    dispatch and combine, when the load is balanced.
    """

    module: str
    layers: int
    experts: int
    top_k: int
    ep: int
    tp: int
    dp: int
    per_rank: int
    parameters: int
    active_parameters: int
    sent_bytes: int
    places: tuple[ExpertPlace, ...]


def rows_of_layers(spec: Spec, layout: Layout, step: StepWork) -> tuple[LayerRow, ...]:
    """Return a row for each kind of layer of each module, in the order of their first layers."""
    rows = []
    for module in layout.modules:
        work, dp = step.work(module), module.grid.size(Axis.DP)
        largest = max(work.forwards, key=lambda each: each.held)
        kind, tp = kind_of(spec.modules[module.name].model), module.grid.size(Axis.TP) - 1
        layers: dict[str, list[Stage]] = {}
        for stage in module.stages:
            for number in kind.numbers(stage.layers, is_last=stage.is_last):
                # A stage of this layer alone, without embedding and head.
                alone = replace(
                    stage, first_layer=number, num_layers=1, is_first=False, is_last=False
                )
                layers.setdefault(kind.layer_name(number), []).append(alone)
        for name, alike in layers.items():
            flops = 0.0
            for each in alike:
                forward = forward_flops(spec, each, work.total)
                flops += (forward + backward_flops(spec, layout, module, each, work.total)).total
            one = alike[0]
            rows.append(
                LayerRow(
                    module=module.name,
                    kind=name,
                    layers=len(alike),
                    has_experts=kind.has_experts(one.first_layer),
                    parameters=stage_weights(spec, one, tp).numel,
                    tflop=flops / work.replicas * dp / 1e12,
                    kept_bytes=Activations(
                        spec, layout, module, one, largest, tp
                    ).saved_by_layers(),
                )
            )
    return tuple(rows)


def expert_rows(spec: Spec, layout: Layout, step: StepWork) -> tuple[ExpertsRow, ...]:
    """Return a row for each module with experts."""
    return tuple(
        _experts_row(spec, layout, module, step)
        for module in layout.modules
        if module.experts is not None
    )


def _experts_row(spec: Spec, layout: Layout, module: ModuleLayout, step: StepWork) -> ExpertsRow:
    mine, view = spec.modules[module.name], module.experts
    model, kind = mine.model, kind_of(mine.model)
    numbers = kind.numbers(range(model.layers), is_last=True)
    moe, layers = kind.moe, [i for i in numbers if kind.has_experts(i)]
    if moe is None or view is None:
        raise TypeError(f"{module.name} has no experts")
    alone = mine.model_copy(update={"grid": Grid(), "experts": ExpertGrid()})
    whole = Stage(module.name, 0, 0, model.layers, is_first=True, is_last=True)
    changed = spec.model_copy(update={"modules": {**spec.modules, module.name: alone}})
    weights = stage_weights(changed, whole, 0)
    # All experts of a layer are alike; an adapter has updates of each.
    of_experts = sum(each.numel for each in weights.all() if each.experts)
    held = sum(work.held for work in step.slowest(module))
    # Per layer and microbatch, dispatch and combine: in the forward, in the backward, and in the
    # second forward where activations are recomputed.
    again = mine.recomputes or "mlp" in mine.recomputed_parts
    ways = 2 * (1 + needs_backward(layout, module) + again)
    tokens = held // module.grid.size(Axis.TP)
    share = (view.size(Axis.EP) - 1) / view.size(Axis.EP)
    in_stage = [0] * module.grid.size(Axis.PP)
    for stage in module.stages:
        numbers = kind.numbers(stage.layers, is_last=stage.is_last)
        in_stage[module.pp_index(stage.index)] += sum(map(kind.has_experts, numbers))
    sent = moe.top_k * tokens * model.hidden * spec.train.numbers.computed.bytes * share
    # Replicas and stages hold the same part of the experts.
    indices = range(view.size(Axis.EP))
    cuts = [even_cut(moe.experts, len(indices), index) for index in indices]
    return ExpertsRow(
        module=module.name,
        layers=len(layers),
        experts=moe.experts,
        top_k=moe.top_k,
        ep=view.size(Axis.EP),
        tp=view.size(Axis.EXPERT_TP),
        dp=view.size(Axis.EXPERT_DP),
        per_rank=moe.experts // view.size(Axis.EP),
        parameters=weights.numel,
        active_parameters=weights.numel - of_experts // moe.experts * (moe.experts - moe.top_k),
        sent_bytes=round(ways * sent * max(in_stage)),
        places=tuple(
            ExpertPlace(
                first_expert=own.start, last_expert=own.stop - 1, ranks=view.slice(ep=index)
            )
            for index, own in enumerate(cuts)
        ),
    )
