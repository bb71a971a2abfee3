"""Seconds of every action of a step, from FLOPs, bytes and the constants of a device.

Decides: which times overlap and which do not (listed in docs/estimates.md).
Relies on: `step_work` for the work of a step, `kernel_times` for computing, `communication_times`
for collectives and for the operations on weights.
Leaves: the course of a step to `schedule.deadlock_proof`, the sum to `estimates`.
"""

from collections.abc import Hashable, Mapping
from dataclasses import field, replace
from functools import cached_property

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.alike_stages import key_of_module, key_of_stage, key_of_work
from mimo_launch.estimate.communication_times import GIGA, MICRO, MILLI, LinkTimes, WeightTimes
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.forward_times import ForwardTimes
from mimo_launch.estimate.host_costs import (
    agreeing_seconds,
    dealing_seconds,
    reading_seconds,
)
from mimo_launch.estimate.host_starts import HostStarts
from mimo_launch.estimate.host_waits import Starts, host_waits
from mimo_launch.estimate.memory import row_bytes
from mimo_launch.estimate.parameters import StageWeights, stage_weights
from mimo_launch.estimate.step_work import Forwards, ModuleWork, StepWork
from mimo_launch.estimate.workload import (
    backward_by_kind,
    backward_path,
    forward_by_kind,
)
from mimo_launch.kinds.layer import Flops, LayerKind, Workload
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.stages import Stage
from mimo_launch.layout.step_views import takes_arrays
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.channels import component_of, partners
from mimo_launch.schedule.data_flow import exchanges, needs_backward
from mimo_launch.schedule.simulation_result import Costs
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec, UserData


@frozen(kw_only=True)
class StageCost:
    """Seconds of one stage on one rank of the slowest replica.

    `forwards` and `backwards` are by index. `first` is added to the step's first forward;
    `reduction` follows the last backward while other work may continue; `update` is the optimizer's
    time. The next six are parts of all forwards and backwards of a step. `all_to_all`: tokens
    travel to experts and back. `sharding`: ranks wait for weights from other replicas, or for the
    reduction of gradients. `offloading`: they wait for activations to go to the host, or to come
    back. `communication`: all exchanges of data, including these three.
    `recomputation`: forwards run again. `starts`: ranks wait for the host. `starting` is the time
    that the host needs to start the kernels of one forward, and of one backward. `flops` is the
    mean over all replicas.
    """

    forwards: tuple[float, ...]
    backwards: tuple[float, ...]
    first: float
    reduction: float
    update: float
    all_to_all: float
    sharding: float
    offloading: float
    communication: float
    recomputation: float
    starts: float
    starting: tuple[float, float]
    flops: float

    @property
    def mean(self) -> tuple[float, float]:
        """The seconds of one forward and of one backward."""
        times = len(self.forwards)
        return sum(self.forwards) / times, sum(self.backwards) / times

    def waiting(self, seconds: tuple[float, float]) -> "StageCost":
        """Return the cost with `seconds` more per forward and backward."""
        forward, backward = seconds
        return replace(
            self,
            forwards=tuple(each + forward for each in self.forwards),
            backwards=tuple(each + backward for each in self.backwards),
            starts=self.starts + len(self.forwards) * (forward + backward),
        )


@frozen(slots=False)
class CostModel:
    """The times of the work of a layout in one step.

    `known` are the times of stages and `kept` their costs in any step, `works` is the work of
    modules in the same step; each by what it depends on in any layout.
    """

    spec: Spec
    layout: Layout
    step: StepWork
    constants: Calibration
    known: dict[Hashable, ForwardTimes] = field(default_factory=dict)
    kept: dict[Hashable, StageCost] = field(default_factory=dict)
    works: dict[Hashable, ModuleWork] = field(default_factory=dict)

    @cached_property
    def work(self) -> dict[str, Forwards]:
        """The forwards of each module for which its replicas wait, by name."""
        return {each.name: self._work_of(each).forwards for each in self.layout.modules}

    def _work_of(self, module: ModuleLayout) -> ModuleWork:
        key = key_of_work(self.layout, module)
        if key not in self.works:
            self.works[key] = self.step.work(module)
        return self.works[key]

    @cached_property
    def links(self) -> LinkTimes:
        """The seconds of single collectives and transfers."""
        return LinkTimes(self.spec, self.constants)

    def costs(self) -> Costs:
        """Return the seconds of every action, for the simulator."""
        exact: dict[tuple[str, int | None, Kind], tuple[float, ...]] = {}
        first: dict[tuple[str, int | None], float] = {}
        edges = {module.name: self._edge(module) for module in self.layout.modules}
        for (name, stage), cost in self.stages.items():
            exact[name, stage, Kind.FORWARD] = cost.forwards
            exact[name, stage, Kind.BACKWARD] = cost.backwards
            first[name, stage] = cost.first
            for kind in (Kind.SEND_F, Kind.SEND_B):
                exact[name, stage, kind] = edges[name]
        for name, bridge in self.layout.bridges.items():
            seconds = self._bridge(bridge)
            for kind in (Kind.SEND_F, Kind.SEND_B, Kind.EXCHANGE_F, Kind.EXCHANGE_B):
                exact[name, None, kind] = seconds
        return Costs(exact=exact, first=first)

    @cached_property
    def stages(self) -> dict[tuple[str, int], StageCost]:
        """The seconds of every stage, by its module and index."""
        alone = {}
        for module in self.layout.modules:
            of_module = key_of_module(self.spec, module), self._work_of(module).key
            for stage in module.stages:
                key = of_module, key_of_stage(self.spec, self.layout, module, stage)
                if key not in self.kept:
                    self.kept[key] = self.stage(module, stage)
                alone[module.name, stage.index] = self.kept[key]
        starts = {
            key: Starts(times=len(cost.forwards), running=cost.mean, starting=cost.starting)
            for key, cost in alone.items()
        }
        waits = host_waits(starts, self.layout.roles, self._reads)
        return {key: cost.waiting(waits[key]) for key, cost in alone.items()}

    @property
    def after(self) -> float:
        """The seconds between the last update and the next step."""
        metrics = self.links.sum_of_metrics(self.layout.world_size)
        return metrics + self.constants.step_overhead * MILLI

    @property
    def reading(self) -> float:
        """The seconds that a rank needs to read the next step, beside the present one.

        The thread that describes it and the thread that starts kernels take turns in Python.
        """
        starts = {key: len(cost.forwards) * sum(cost.starting) for key, cost in self.stages.items()}
        return self._longest(self._reads, starts)

    @property
    def least_reading(self) -> float:
        """A bound of `reading`, for which no samples are dealt out to encoders.

        It counts what ranks read and start for language.
        """
        module, starts = self.layout.language, dict[tuple[str, int], float]()
        for stage in module.stages:
            trains = bool(backward_path(self.spec, self.layout, module, stage).layers)
            weights = self._weights(module, stage)
            starting = self._starting(module, stage, weights, changes=False, trains=trains)
            starts[module.name, stage.index] = self.layout.num_groups(module) * sum(starting)
        return self._longest(self._reads_of(arrays=False), starts)

    def _longest(
        self,
        reads: Mapping[tuple[tuple[str, int], ...], float],
        starts: Mapping[tuple[str, int], float],
    ) -> float:
        """Return the seconds of the slowest rank, of those to read and to start each stage."""
        agreeing = agreeing_seconds(self.constants, self.layout.world_size)
        return self._dealing + max(
            read + max(agreeing, sum(starts.get(each, 0.0) for each in role))
            for role, read in reads.items()
        )

    @property
    def python(self) -> float:
        """The seconds of Python in which a rank looks up a step and reads its share."""
        return self._dealing + max(self._reads.values())

    @property
    def _dealing(self) -> float:
        records, packing = self.step.data.num_records, self.spec.data.packing
        return dealing_seconds(self.constants, records, packing=packing)

    @cached_property
    def _reads(self) -> dict[tuple[tuple[str, int], ...], float]:
        """The seconds of Python in which ranks read samples of files, by the stages they hold."""
        return self._reads_of(arrays=True)

    def _reads_of(self, *, arrays: bool) -> dict[tuple[tuple[str, int], ...], float]:
        """Return these seconds, with those for arrays of encoders or without."""
        roles = dict.fromkeys(self.layout.roles, 0.0)
        if not isinstance(self.spec.data, UserData):
            return roles
        texts, tokens = self.step.texts
        of_texts = reading_seconds(self.constants, texts=texts, tokens=tokens, arrays=0)
        for role in roles:
            for module in map(self.layout.__getitem__, dict.fromkeys(name for name, _ in role)):
                held = [module.stages[stage] for name, stage in role if name == module.name]
                if module.is_language:
                    roles[role] += of_texts * any(each.is_first or each.is_last for each in held)
                elif arrays and takes_arrays(module, held):
                    number = sum(work.spans.total() for work in self.work[module.name])
                    roles[role] += reading_seconds(self.constants, texts=0, tokens=0, arrays=number)
        return roles

    def stage(self, module: ModuleLayout, stage: Stage) -> StageCost:
        """Return the seconds of a stage on the tp rank with the largest part, without host waits.

        They depend on nothing else in the layout but what the module gets to do.
        """
        weights = self._weights(module, stage)
        works = self.work[module.name]
        found = list(map(self.forwards_of(module, stage).of, works))
        times = WeightTimes(self.spec, self.constants, module)
        gather, reduction = times.gather(weights), times.reduction(weights)
        copied = times.gather_copies(weights)
        added = times.reduction_copies(weights, len(works))
        first, waited = 0.0, 0.0
        aheads, backs = [each.ahead for each in found], [0.0] * len(found)
        if has_backward := needs_backward(self.layout, module, stage.index):
            backs = [each.back for each in found]
        if weights.full_sharding:
            # Every action gathers weights, and every backward reduces.
            computed = sum(aheads) + sum(backs)
            exchanged = sum(gather) + sum(reduction)
            aheads = [self._beside(each, sum(gather)) + copied for each in aheads]
            if has_backward:
                backs = [self._beside(each, exchanged) + copied + added for each in backs]
            waited = sum(aheads) + sum(backs) - computed
            late = reduction[-1] + times.sums_of_copies(weights) if weights.trained else 0.0
        else:
            summed = times.accumulation(weights, len(works))
            backs = [each + summed for each in backs]
            first = gather[-1] + self._exposed(aheads[0], sum(gather[:-1])) + copied
            reduced = sum(reduction[:-1]) + times.sums_of_copies(weights)
            late = reduction[-1] + self._exposed(backs[-1], reduced) + added
        flops, trains = self._flops(module, stage)
        overhead = self.constants.action_overhead * MICRO
        changes = self._changes(module)
        return StageCost(
            forwards=tuple(aheads),
            backwards=tuple(backs),
            first=first,
            reduction=late,
            update=times.update(weights),
            all_to_all=sum(each.all_to_all for each in found),
            sharding=waited + first,
            offloading=sum(each.offloading for each in found),
            communication=sum(each.communication for each in found) + waited + first,
            recomputation=sum(each.recomputation for each in found),
            starts=(1 + trains) * overhead * len(works),
            starting=self._starting(module, stage, weights, changes=changes, trains=trains),
            flops=flops / _parts(module),
        )

    def _weights(self, module: ModuleLayout, stage: Stage) -> StageWeights:
        """Return the weights of a stage on the last tp rank."""
        return stage_weights(self.spec, stage, module.grid.size(Axis.TP) - 1)

    def _starting(
        self,
        module: ModuleLayout,
        stage: Stage,
        weights: StageWeights,
        *,
        changes: bool,
        trains: bool,
    ) -> tuple[float, float]:
        """Return the seconds of the host to start the kernels of one forward, and of one backward.

        See `HostStarts.passes`.
        """
        units = sum(1 for _ in weights.units) if weights.full_sharding else 0
        starts = HostStarts(self.spec, self.constants, module, stage)
        forward, backward = starts.passes(changes=changes, trains=trains, units=units)
        one_pass = self.constants.layer_overhead * MICRO
        return forward * one_pass, backward * one_pass

    def _beside(self, computing: float, exchanging: float) -> float:
        """Return the seconds of computing and of exchanges that it hides as far as it can."""
        return computing + self._exposed(computing, exchanging)

    def _exposed(self, computing: float, exchanging: float) -> float:
        """Return the seconds that exchanges add to computing beside them."""
        return exchanging - self.constants.collective_overlap * min(computing, exchanging)

    def forwards_of(self, module: ModuleLayout, stage: Stage) -> ForwardTimes:
        """Return the times of the forwards of a stage and of their backwards."""
        of_stage = key_of_stage(self.spec, self.layout, module, stage)
        key = key_of_module(self.spec, module), of_stage
        if key not in self.known:
            place = self.spec, self.layout, module, stage
            self.known[key] = ForwardTimes(*place, self.constants, self.links)
        return self.known[key]

    def _flops(self, module: ModuleLayout, stage: Stage) -> tuple[float, bool]:
        """Return the model FLOPs of a replica's stage in the step, and whether it trains."""
        work = self._work_of(module)
        ahead, back = self._operations(module, stage, work.total)
        backward = sum(each.total for each in back.values())
        flops = sum(each.total for each in ahead.values()) + backward
        return flops / work.replicas, bool(backward)

    def _operations(
        self, module: ModuleLayout, stage: Stage, work: Workload
    ) -> tuple[Mapping[LayerKind, Flops], Mapping[LayerKind, Flops]]:
        """Return the operations of a forward and of its backward, by kind of layer."""
        forward = forward_by_kind(self.spec, stage, work)
        return forward, backward_by_kind(self.spec, self.layout, module, stage, work)

    def _changes(self, module: ModuleLayout) -> bool:
        """Return whether forwards differ in tokens: sequences are padded, images are not."""
        lengths = {length for work in self.work[module.name] for length in work.spans}
        return not module.is_language and len(lengths) > 1

    def _edge(self, module: ModuleLayout) -> tuple[float, ...]:
        """Return the seconds of each forward's activation from a stage to the next."""
        grid, rank, works = module.grid, module.grid.ranks.start, self.work[module.name]
        if grid.size(Axis.PP) == 1:
            return (0.0,) * len(works)
        lanes = max(stage.lanes for stage in module.stages)
        size = self.spec.modules[module.name].model.hidden * (1 + lanes)
        shared = grid.size(Axis.TP) if module.sequence_parallel else 1
        size *= self.spec.train.numbers.computed.bytes
        ends = grid.group_of(rank, Axis.PP)[:2]
        return tuple(self.links.transfer(ends, work.held // shared * size) for work in works)

    def _bridge(self, bridge: Bridge) -> tuple[float, ...]:
        """Return the seconds of each transfer of rows over a bridge, one way."""
        source, width = self.layout[bridge.source], row_bytes(self.spec, bridge)
        rank = source.stage_ranks(len(source.stages) - 1)[0]
        if exchanges(self.layout, bridge):
            ranks = component_of(self.layout, rank, bridge.name)
        else:
            ends = partners(self.layout, rank, Action(bridge.name, None, Kind.SEND_F, 0))
            ranks = tuple(sorted({rank, *ends}))

        def seconds(size: int) -> float:
            # Rows that stay on their rank are copied.
            copy = 2 * size / self.constants.memory_bandwidth / GIGA
            return copy + (self.links.transfer(ranks, size) if len(ranks) > 1 else 0.0)

        return tuple(seconds(rows * width) for rows in self.step.most_rows(bridge))


def _parts(module: ModuleLayout) -> int:
    """Return the number of ranks that share the work of a replica's stage."""
    return module.grid.size(Axis.TP) * module.grid.size(Axis.CP)
