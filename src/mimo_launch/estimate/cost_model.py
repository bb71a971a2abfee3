"""Seconds of every action of a step, from FLOPs, bytes and the constants of a device.

Decides: which times overlap and which do not (listed in docs/estimates.md).
Relies on: `parameters` and `workload` for amounts, `kernel_times` for computing,
`communication_times` for collectives and for the operations on weights.
Leaves: the course of a step to `schedule.deadlock_proof`, the sum to `estimates`.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from mimo_launch.estimate.communication_times import GIGA, MICRO, LinkTimes, WeightTimes
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.host_waits import Starts, host_waits
from mimo_launch.estimate.kernel_times import StageKernels
from mimo_launch.estimate.memory import row_bytes
from mimo_launch.estimate.parameters import stage_weights
from mimo_launch.estimate.workload import (
    backward_flops,
    forward_by_kind,
    gathered_patches,
    workload,
)
from mimo_launch.kinds.layer import LayerKind, Workload
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.stages import Stage
from mimo_launch.layout.step_data import SampleData
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.channels import component_of, partners
from mimo_launch.schedule.data_flow import exchanges
from mimo_launch.schedule.simulation_result import Costs
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Seconds of one stage on one rank.

    `first` is added to the step's first forward; `reduction` follows the last backward while other
    work may continue; `update` is the optimizer's time. The next five are parts of all forwards and
    backwards of a step. `all_to_all`: tokens travel to experts and back. `sharding`: ranks wait for
    weights from other replicas, or for the reduction of gradients. `communication`: all exchanges
    of data, including these two. `recomputation`: forwards run again. `starts`: ranks wait for the
    host. `starting` is the time that the host needs to start the kernels of one forward, and of one
    backward.
    """

    forward: float
    backward: float
    first: float
    reduction: float
    update: float
    all_to_all: float
    sharding: float
    communication: float
    recomputation: float
    starts: float
    starting: tuple[float, float]
    flops: float

    def waiting(self, seconds: tuple[float, float], times: int) -> "StageCost":
        """Return the cost with `seconds` more per forward and backward, `times` in a step."""
        forward, backward = seconds
        return replace(
            self,
            forward=self.forward + forward,
            backward=self.backward + backward,
            starts=self.starts + times * (forward + backward),
        )


@dataclass(frozen=True)
class CostModel:
    """The times of the work of a layout if every sample of a step is like `sample`."""

    spec: Spec
    layout: Layout
    sample: SampleData
    constants: Calibration

    @cached_property
    def work(self) -> dict[str, Workload]:
        """One forward of each module, by name."""
        return {each.name: workload(self.layout, each, self.sample) for each in self.layout.modules}

    @cached_property
    def row_bytes(self) -> dict[str, tuple[int, int]]:
        """The bytes that a rank sends in one transfer of each bridge, and that a rank receives."""
        return {
            name: row_bytes(self.spec, self.layout, bridge, self.sample)
            for name, bridge in self.layout.bridges.items()
        }

    @property
    def links(self) -> LinkTimes:
        """The seconds of single collectives and transfers."""
        return LinkTimes(self.spec, self.constants)

    def costs(self) -> Costs:
        """Return the seconds of every action, for the simulator."""
        exact: dict[tuple[str, int | None, Kind], float] = {}
        first: dict[tuple[str, int | None], float] = {}
        edges = {module.name: self._edge(module) for module in self.layout.modules}
        for (name, stage), cost in self.stages.items():
            exact[name, stage, Kind.FORWARD] = cost.forward
            exact[name, stage, Kind.BACKWARD] = cost.backward
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
        alone = {
            (module.name, stage.index): self.stage(module, stage)
            for module in self.layout.modules
            for stage in module.stages
        }
        times = {key: self.work[key[0]].forwards for key in alone}
        starts = {
            key: Starts(
                times=times[key], running=(cost.forward, cost.backward), starting=cost.starting
            )
            for key, cost in alone.items()
        }
        waits = host_waits(starts, self.layout.roles)
        return {key: cost.waiting(waits[key], times[key]) for key, cost in alone.items()}

    def stage(self, module: ModuleLayout, stage: Stage) -> StageCost:
        """Return the seconds of a stage on the tp rank with the largest part, without host waits.

        They depend on nothing else in the layout but what the module gets to do.
        """
        weights = stage_weights(self.spec, stage, module.grid.size(Axis.TP) - 1)
        forward = forward_by_kind(self.spec, stage, self.work[module.name])
        backward = {
            kind: backward_flops(self.spec, self.layout, module, stage, flops)
            for kind, flops in forward.items()
        }
        overhead = self.constants.action_overhead * MICRO
        travel = self._travel(module, stage)
        between = self._layers(module, stage) + travel
        kernels = StageKernels(
            self.spec, self.layout, module, stage, self.work[module.name], self.constants
        )
        ahead = kernels.forward() + between
        back, travels, again = kernels.backward(), 1, 0.0
        if any(flops.linear for flops in backward.values()):
            back, travels = back + between, 2
            if self.spec.modules[module.name].recomputes:
                again = kernels.repeated()
                back, travels = back + again + between, 3
        ahead, back = ahead + overhead, back + overhead
        trains = any(each.total for each in backward.values())
        one_pass = self._started(module, stage) * self.constants.layer_overhead * MICRO
        times = WeightTimes(self.spec, self.constants, module)
        gather, reduction = times.gather(weights), times.reduction(weights)
        first, waited = 0.0, 0.0
        if weights.full_sharding:
            # Every action gathers weights, and every backward reduces; both overlap with compute.
            computed = ahead + back
            ahead, back = max(ahead, sum(gather)), max(back, sum(gather) + sum(reduction))
            waited = ahead + back - computed
            late = reduction[-1] + times.sums_of_copies(weights) if weights.trained else 0.0
        else:
            back += times.accumulation(weights, self.work[module.name].forwards)
            first = gather[-1] + max(0.0, sum(gather[:-1]) - ahead)
            summed = times.sums_of_copies(weights)
            late = reduction[-1] + max(0.0, sum(reduction[:-1]) + summed - back)
        forwards = self.work[module.name].forwards
        flops = sum(each.total for each in (*forward.values(), *backward.values())) * forwards
        return StageCost(
            forward=ahead,
            backward=back,
            first=first,
            reduction=late,
            update=times.update(weights),
            all_to_all=travel * travels * forwards,
            sharding=waited * forwards + first,
            communication=(travels * between + waited) * forwards + first,
            recomputation=again * forwards,
            starts=(1 + trains) * overhead * forwards,
            # The passes of a backward: gradients, and the forward again if it is recomputed.
            starting=(one_pass, (travels - 1) * one_pass),
            flops=flops / _parts(module),
        )

    def _started(self, module: ModuleLayout, stage: Stage) -> float:
        """Return how many passes of a block take the host as long as one of these layers."""
        own, rates = self.spec.modules[module.name], self.constants
        kind, factors = kind_of(own.model), dict.fromkeys(LayerKind, rates.recurrent_starts)
        factors |= {LayerKind.BLOCK: 1.0, LayerKind.EXPERTS: rates.experts_starts}
        numbers = kind.numbers(stage.layers, is_last=stage.is_last)
        found = sum(factors[kind.layer_kind(each)] for each in numbers)
        if own.backend != "torch":
            found *= rates.engine_starts * (rates.fp8_starts if module.fp8 else 1.0)
        # Sequences are filled up to the same length, images are not.
        changes = not module.is_language and len(self.work[module.name].spans) > 1
        return found * (rates.dynamic_starts if changes else 1.0)

    def _layers(self, module: ModuleLayout, stage: Stage) -> float:
        """Return the seconds of the tp and cp collectives inside a stage in one direction."""
        grid, rank = module.grid, module.grid.ranks.start
        work, stream = self.work[module.name], self.spec.modules[module.name].model.hidden
        number = self.spec.train.numbers.computed.bytes
        # A tp region has a gather at its start and a reduce-scatter at its end, of all tokens, or
        # one all-reduce, which takes as long. Embedding, projector and head are half a region each.
        tokens = work.held * stream * number
        kind = kind_of(self.spec.modules[module.name].model)
        numbers = kind.numbers(stage.layers, is_last=stage.is_last)
        layers = [kind.layer_widths(number) for number in numbers]
        regions = sum(layer.regions for layer in layers) + (stage.is_first + stage.is_last) / 2
        seconds = 2 * regions * self.links.collective(grid.group_of(rank, Axis.TP), tokens)
        held, cp = work.held / grid.size(Axis.TP) * number, grid.group_of(rank, Axis.CP)
        for layer in layers:
            if layer.exchanges:  # Tokens for heads, and back.
                seconds += self.links.exchange(cp, held * layer.exchanges)
            if layer.gathers:
                seconds += self.links.collective(cp, held * len(cp) * layer.gathers)
        if patches := gathered_patches(module, stage, work):
            size = patches * self.spec.row_width(module.name) * number
            seconds += self.links.collective(grid.group_of(rank, Axis.CP), size)
            if module.sequence_parallel:
                own = size / grid.size(Axis.CP)
                seconds += self.links.collective(grid.group_of(rank, Axis.TP), own)
        return seconds

    def _travel(self, module: ModuleLayout, stage: Stage) -> float:
        """Return the seconds of dispatch to experts and back, in one forward or backward."""
        if module.experts is None:
            return 0.0
        model, width = self.spec.modules[module.name].model, self.spec.train.numbers.computed.bytes
        # Each rank of a tp group sends a part of its tokens.
        sent = self.work[module.name].held * model.hidden * width // module.grid.size(Axis.TP)
        first = module.grid.ranks.start
        ep, split = (module.experts.group_of(first, a) for a in (Axis.EP, Axis.EXPERT_TP))
        seconds = 0.0
        kind = kind_of(model)
        for number in kind.numbers(stage.layers, is_last=stage.is_last):
            if kind.moe is not None and kind.has_experts(number):
                size = kind.moe.top_k * sent
                # Ranks that split an expert gather each other's tokens, and sum the results.
                gathered = self.links.collective(split, len(split) * size)
                seconds += 2 * (self.links.exchange(ep, size) + gathered)
        return seconds

    def _edge(self, module: ModuleLayout) -> float:
        """Return the seconds of one activation from a stage to the next."""
        grid, rank = module.grid, module.grid.ranks.start
        if grid.size(Axis.PP) == 1:
            return 0.0
        lanes = max(stage.lanes for stage in module.stages)
        size = self.spec.modules[module.name].model.hidden * (1 + lanes)
        shared = grid.size(Axis.TP) if module.sequence_parallel else 1
        tokens = self.work[module.name].held // shared
        return self.links.transfer(
            grid.group_of(rank, Axis.PP)[:2], tokens * size * self.spec.train.numbers.computed.bytes
        )

    def _bridge(self, bridge: Bridge) -> float:
        """Return the seconds of one transfer of rows over a bridge, one way."""
        size, source = max(self.row_bytes[bridge.name]), self.layout[bridge.source]
        rank = source.stage_ranks(len(source.stages) - 1)[0]
        if exchanges(self.layout, bridge):
            ranks = component_of(self.layout, rank, bridge.name)
        else:
            ends = partners(self.layout, rank, Action(bridge.name, None, Kind.SEND_F, 0))
            ranks = tuple(sorted({rank, *ends}))
        # Rows that stay on their rank are copied.
        copy = 2 * size / self.constants.memory_bandwidth / GIGA
        return copy + (self.links.transfer(ranks, size) if len(ranks) > 1 else 0.0)


def _parts(module: ModuleLayout) -> int:
    """Return the number of ranks that share the work of a replica's stage."""
    return module.grid.size(Axis.TP) * module.grid.size(Axis.CP)
