"""The report of a whole job or of one rank, from a checked spec, and its JSON.

Decides: nothing about the job, which `layout` and `schedule` decide. The JSON has stable keys (the
names of the fields in `rows`, see docs/plan-json.md) and one item of a list per line.
Relies on: a spec that `checks` has passed; a nominal step for counts of rows.
Leaves: groups, bridges, layers and model time to its siblings, drawing to `cli`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, is_dataclass
from typing import Any, overload

from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import as_ranges
from mimo_launch.drawing.layer_rows import expert_rows, rows_of_layers
from mimo_launch.drawing.meeting_rows import bridge_row, group_rows, peer_rows
from mimo_launch.drawing.rows import (
    Header,
    HeldModule,
    LossRow,
    ModuleRow,
    RankReport,
    RankRow,
    Report,
    SampleRow,
    Schedule,
    StageRow,
)
from mimo_launch.drawing.timeline import peak_live, program_rows, timeline_row, timeline_rows
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.step_data import StepData
from mimo_launch.schedule.actions import format_program
from mimo_launch.schedule.simulation_result import Simulation, lower_bound
from mimo_launch.search.answer import answer_of, what_fits
from mimo_launch.spec.base import AXES, LANGUAGE, Axis
from mimo_launch.spec.module import FrozenLayers, ModuleSpec
from mimo_launch.spec.spec import Spec, UserData


def report_of(
    estimator: Estimator, *, tokens: int | None = None, advice: bool = False, fits: bool = True
) -> Report:
    """Return the report of all ranks of a plan with these estimates.

    With `advice`, the answer proposes changes, which takes as long as making several plans: for a
    job that does not fit, changes that make it fit. `tokens` is the number of tokens in the whole
    training.

    Raises: DeadlockError if the simulator finds that the programs do not end.
    """
    plan = estimator.plan
    spec, layout, simulation = plan.spec, plan.layout, plan.simulation
    estimates = estimator.estimates()
    work = estimator.typical.model.step
    step = work.data
    per_node = spec.nodes.gpus if spec.nodes else None
    timeline = timeline_rows(layout, simulation)
    busy = [(len(row.ranks), row.bubble) for row in timeline if row.work]
    return Report(
        header=_header(estimator, step),
        modules=tuple(_module_row(spec, layout, module) for module in layout.modules),
        ranks=_RankRows(layout, per_node),
        groups=tuple(group_rows(layout, per_node)),
        layers=rows_of_layers(spec, layout, work),
        experts=expert_rows(spec, layout, work),
        stages=_stage_rows(layout, simulation),
        bridges=tuple(bridge_row(plan, step, each, per_node) for each in layout.bridges.values()),
        schedule=Schedule(
            makespan=simulation.makespan,
            lower_bound=lower_bound(layout, plan.units),
            bubble=sum(n * bubble for n, bubble in busy) / max(1, sum(n for n, _ in busy)),
            timeline=timeline,
            programs=program_rows(layout, plan.training),
            evaluation=program_rows(layout, plan.evaluation) if spec.eval else (),
            decoding=program_rows(layout, plan.decoding) if spec.eval else (),
        ),
        estimates=estimates,
        hosts=estimator.host_costs,
        answer=answer_of(estimator, estimates, tokens=tokens, seeks=advice and fits),
        losses=_loss_rows(layout, step),
        fitting=None if fits or not advice else what_fits(estimator),
    )


def _stage_rows(layout: Layout, simulation: Simulation) -> tuple[StageRow, ...]:
    return tuple(
        StageRow(
            module=module.name,
            stage=stage.index,
            first_layer=stage.first_layer,
            last_layer=stage.first_layer + stage.num_layers - 1,
            ranks=module.stage_ranks(stage.index),
            peak_live=peak_live(layout, simulation, module, stage.index),
        )
        for module in layout.modules
        for stage in module.stages
    )


def _loss_rows(layout: Layout, step: StepData) -> tuple[LossRow, ...]:
    """Return a row for each loss; none if language has the only loss, with weight 1."""
    if all(each.name == LANGUAGE and each.weight == 1 for each in layout.losses):
        return ()
    return tuple(
        LossRow(
            module=each.name,
            weight=each.weight,
            terms=round(step.num_terms(each.module, each.depth)),
        )
        for each in layout.losses
    )


def rank_report_of(estimator: Estimator, rank: int) -> RankReport:
    """Return the report of one rank of a plan with these estimates.

    Raises:
        DeadlockError: The simulator finds that the programs do not end.
        ValueError: The job has no such rank.
    """
    plan = estimator.plan
    spec, layout, mine = plan.spec, plan.layout, plan.rank(rank)
    views = estimator.typical.model.step.views
    step = views.data
    per_node = spec.nodes.gpus if spec.nodes else None
    forwards = []
    for module in layout.modules_of(rank):
        replica = module.grid.index(Axis.DP, rank)
        for index in range(layout.num_groups(module)):
            samples = tuple(views.samples_at(module, replica, index))
            split = views.split_at(module, replica, index)
            forwards.append(
                SampleRow(
                    module=module.name,
                    index=index,
                    ranges=as_ranges(samples),
                    split=as_ranges(tuple(sorted(split))),
                )
            )
    return RankReport(
        header=_header(estimator, step),
        rank=_rank_row(layout, rank, per_node),
        groups=tuple(group_rows(layout, per_node, rank)),
        samples=tuple(forwards),
        peers=tuple(
            row for each in layout.bridges.values() for row in peer_rows(views, each, rank)
        ),
        makespan=plan.simulation.makespan,
        timeline=timeline_row(layout, plan.simulation, rank),
        program=format_program(mine.training),
        evaluation=format_program(mine.evaluation) if spec.eval else "",
        decoding=format_program(mine.decoding) if spec.eval else "",
        estimates=estimator.estimates(rank),
    )


def _header(estimator: Estimator, step: StepData) -> Header:
    plan, expected = estimator.plan, estimator.expected
    packs = isinstance(plan.spec.data, UserData) and not plan.spec.data.packing
    spec, samples, some = plan.spec, plan.layout.samples, step.samples[:_SOME]
    return Header(
        name=spec.name,
        world_size=plan.layout.world_size,
        plan_hash=plan.identity,
        steps=spec.train.steps,
        epochs=spec.train.epochs,
        global_batch=samples.global_batch,
        microbatches=samples.microbatches,
        microbatch_size=samples.microbatch_size,
        seq=plan.layout.seq,
        ranks_per_node=spec.nodes.gpus if spec.nodes else None,
        nominal="largest" if estimator.worst else "mean",
        nominal_rows={
            each.name: round(sum(sample.rows(each.name) for sample in some) / len(some))
            for each in plan.layout.modules
            if not each.is_language
        },
        nominal_labels=step.num_labels,
        source=expected.source,
        basis=expected.basis + _computed(spec),
        padding=expected.padding,
        padding_if_packed=expected.padding_with(packing=True) if packs else None,
    )


def _computed(spec: Spec) -> str:
    """Return which encoders are taken to compute rows that later epochs read from a cache."""
    names = " and ".join(name for name, each in spec.modules.items() if each.row_cache)
    return f", while the cache of {names} is empty (steps that read it are faster)" * bool(names)


def _module_row(spec: Spec, layout: Layout, module: ModuleLayout) -> ModuleRow:
    mine, grid = spec.modules[module.name], module.grid
    own, theirs = grid.ranks, layout.language.grid.ranks
    placement, role = None, LANGUAGE
    if not module.is_language:
        overlaps = own.start < theirs.stop and theirs.start < own.stop
        placement = "colocated" if own == theirs else "overlapping" if overlaps else "disjoint"
        role = "connector" if module.reads else "encoder"
        if module.computes_loss:
            role = "generator"
    return ModuleRow(
        name=module.name,
        kind=mine.model.kind,
        first_rank=own.start,
        last_rank=own.stop - 1,
        grid={axis: grid.size(axis) for axis in AXES},
        order=grid.axes,
        layers=mine.model.layers,
        placement=placement,
        sequence_parallel=module.sequence_parallel,
        frozen=module.frozen,
        frozen_part=_frozen_part(mine),
        sharding=mine.sharding,
        shard_over=mine.shard_over,
        adapter_rank=None if mine.adapter is None else mine.adapter.rank,
        quantize_base=None if mine.quantize_base is None else mine.quantize_base.kind,
        backend=mine.backend,
        fp8=None if mine.fp8 is None else mine.fp8.scaling,
        recompute=mine.recompute,
        offload=mine.offload,
        role=None if layout.is_star else role,
        reads=None if layout.is_star else module.reads,
    )


def _frozen_part(module: ModuleSpec) -> str | None:
    """Return what a module that trains in part freezes: all but its projector, or some layers."""
    if isinstance(module.frozen, FrozenLayers):
        return f"layers {module.frozen.layers}"
    return None if isinstance(module.frozen, bool) else module.frozen


@frozen(slots=False)
class _RankRows(Sequence[RankRow]):
    """The rows of all ranks, each made on demand, because tables show only the first."""

    layout: Layout
    per_node: int | None

    def __len__(self) -> int:
        return self.layout.world_size

    @overload
    def __getitem__(self, index: int) -> RankRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RankRow, ...]: ...
    def __getitem__(self, index: int | slice) -> RankRow | tuple[RankRow, ...]:
        found = range(len(self))[index]
        if isinstance(found, int):
            return _rank_row(self.layout, found, self.per_node)
        return tuple(_rank_row(self.layout, rank, self.per_node) for rank in found)


def _rank_row(layout: Layout, rank: int, per_node: int | None) -> RankRow:
    held = []
    for module, stage in ((m, s) for m in layout.modules_of(rank) for s in m.stages_of(rank)):
        held.append(
            HeldModule(
                module=module.name,
                coords={axis: module.grid.index(axis, rank) for axis in AXES},
                stage=stage.index,
                first_layer=stage.first_layer,
                last_layer=stage.first_layer + stage.num_layers - 1,
                samples=layout.samples.global_batch // module.grid.size(Axis.DP),
                groups=layout.num_groups(module),
                group_size=module.group_size,
            )
        )
    node = None if per_node is None else rank // per_node
    return RankRow(rank=rank, node=node, modules=tuple(held))


# Samples of which the mean is shown.
_SOME = 256
VERSION = 1
# Floats are sums of whole units; nine digits hide rounding noise.
_DIGITS = 9


def report_json(report: Report | RankReport) -> str:
    """Return a report as JSON."""
    return "".join(json_parts(report))


def json_parts(report: Report | RankReport) -> Iterator[str]:
    """Yield a report as JSON in parts, because the text of many ranks takes much memory."""
    yield from _object({"version": VERSION, **_members(report)}, 0)


def _members(row: Any) -> dict[str, Any]:
    """Return the members of a row by name, without members at their default.

    Whole floats become integers.
    """
    members = {}
    for name, field in row.__dataclass_fields__.items():
        value = getattr(row, name)
        if field.default is not MISSING and value == field.default:
            continue
        if isinstance(value, float):
            value = int(value) if value.is_integer() else round(value, _DIGITS)
        members[name] = value
    return members


_encoded = json.JSONEncoder(default=_members).encode


def _object(members: dict[str, Any], depth: int) -> Iterator[str]:
    """Yield the JSON of an object with one line per member.

    A list of objects has one line per object, two levels deep.
    """
    inside = " " * (depth + 1)
    for place, (name, value) in enumerate(members.items()):
        yield f"{',' if place else '{'}\n{inside}{json.dumps(name)}: "
        if isinstance(value, Sequence) and value and is_dataclass(value[0]):
            for number, row in enumerate(value):
                yield f"{',' if number else '['}\n{inside} {_encoded(row)}"
            yield f"\n{inside}]"
            continue
        own = _members(value) if depth == 0 and is_dataclass(value) else {}
        if any(isinstance(each, (tuple, dict)) or is_dataclass(each) for each in own.values()):
            yield from _object(own, depth + 1)
        else:
            yield _encoded(value)
    yield f"\n{' ' * depth}}}"
