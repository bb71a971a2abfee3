"""What `plan.plan` says of experts: where they stand, how many weights, how much travels.

Decides: that loads are balanced, so that every rank sends as much as any other.
Relies on: `estimate.parameters` for weights, `estimate.workload` for tokens.
Leaves: seconds to `estimate.cost_model`, drawing to `cli`.
"""

from collections.abc import Iterator

from mimo_launch.drawing.layer_row_types import ExpertPlace, ExpertsRow
from mimo_launch.estimate.memory import COMPUTED
from mimo_launch.estimate.parameters import stage_weights
from mimo_launch.estimate.workload import workload
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.share import even_cut
from mimo_launch.layout.expert_grid import ExpertView
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.stages import Stage
from mimo_launch.layout.step_data import SampleData
from mimo_launch.schedule.roles import needs_backward
from mimo_launch.spec.model import ExpertGrid, Grid, Spec


def expert_rows(spec: Spec, layout: Layout, sample: SampleData) -> tuple[ExpertsRow, ...]:
    """Return a row for each module with experts."""
    return tuple(
        _row(spec, layout, module, sample)
        for module in layout.modules
        if module.experts is not None
    )


def _row(spec: Spec, layout: Layout, module: ModuleLayout, sample: SampleData) -> ExpertsRow:
    mine, view = spec.modules[module.name], module.experts
    model, kind = mine.model, kind_of(mine.model)
    moe, layers = kind.moe, [i for i in range(model.layers) if kind.has_experts(i)]
    if moe is None or view is None:
        raise TypeError(f"{module.name} has no experts")
    alone = mine.model_copy(update={"grid": Grid(), "experts": ExpertGrid()})
    whole = Stage(module.name, 0, 0, model.layers, is_first=True, is_last=True)
    changed = spec.model_copy(update={"modules": {**spec.modules, module.name: alone}})
    parameters = stage_weights(changed, whole, 0).numel
    one = (1 + kind.widths.ups) * moe.width * model.hidden
    work = workload(layout, module, sample)
    # Per layer and microbatch: there and back, forward and backward, and forward once more where
    # activations are recomputed.
    ways = 2 * (1 + needs_backward(layout, module) + (mine.recompute == "full"))
    tokens = work.held // module.grid.size("tp") * work.forwards
    share = (view.size("ep") - 1) / view.size("ep")
    sent = moe.top_k * tokens * model.hidden * COMPUTED[spec.train.precision] * share
    return ExpertsRow(
        module=module.name,
        layers=len(layers),
        experts=moe.experts,
        top_k=moe.top_k,
        ep=view.size("ep"),
        tp=view.size("tp"),
        dp=view.size("dp"),
        per_rank=moe.experts // view.size("ep"),
        parameters=parameters,
        active_parameters=parameters - len(layers) * (moe.experts - moe.top_k) * one,
        sent_bytes=round(ways * sent * _most_in_a_stage(kind, module)),
        places=tuple(_places(view, moe.experts)),
    )


def _places(view: ExpertView, experts: int) -> Iterator[ExpertPlace]:
    """Yield which ranks hold which experts: parts of them, replicas and other layers alike."""
    held: list[list[int]] = [[] for _ in range(view.size("ep"))]
    for rank in sorted(rank for stage in view.stages for rank in stage):
        held[view.index("ep", rank)].append(rank)
    for index, ranks in enumerate(held):
        own = even_cut(experts, len(held), index)
        yield ExpertPlace(first_expert=own.start, last_expert=own.stop - 1, ranks=tuple(ranks))


def _most_in_a_stage(kind: ModelKind, module: ModuleLayout) -> int:
    """Return the most layers of experts that a rank holds."""
    counts = [0] * module.grid.size("pp")
    for stage in module.stages:
        counts[module.pp_index(stage.index)] += sum(kind.has_experts(i) for i in stage.layers)
    return max(counts)
