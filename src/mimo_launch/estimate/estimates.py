"""The estimates of a step: memory, FLOPs and time, once per class of ranks.

Decides: which ranks form a class, which rank represents it, and what time follows the schedule.
Relies on: `cost_model` for seconds, `host_costs` for those of hosts, `memory_peak` for bytes,
`schedule.deadlock_proof` for the course of a step.
Leaves: showing it to `drawing.plan_report` and `cli`, judging it to `checks.memory`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import product

from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.estimate.communication_times import TERA
from mimo_launch.estimate.cost_model import CostModel
from mimo_launch.estimate.device_constants import Calibration, constants_for
from mimo_launch.estimate.host_costs import (
    HostCosts,
    agreeing_seconds,
    host_costs,
    num_boxes,
    python_seconds,
)
from mimo_launch.estimate.memory import StageMemory, stage_memory
from mimo_launch.estimate.memory_peak import peak_memory
from mimo_launch.estimate.parameters import StageWeights, stage_weights
from mimo_launch.estimate.rows import Estimates, MemoryRow, RankEstimate, StageEstimate
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.bridge_routing import components
from mimo_launch.layout.layout import Layout, Role
from mimo_launch.layout.rank_groups import groups_of
from mimo_launch.layout.stages import Stage
from mimo_launch.layout.step_data import SampleData
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.actions import Kind
from mimo_launch.schedule.channels import channels_of
from mimo_launch.schedule.deadlock_proof import simulate
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.rank_classes import ClassMeetings, classes_of, refined
from mimo_launch.schedule.simulation_result import Simulation
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec

_MILLI = 1e-3


@dataclass(frozen=True, eq=False, slots=True)
class RankClass:
    """Ranks that hold the same stages with equal weights and run one program."""

    role: Role
    ranks: tuple[int, ...]
    weights: tuple[StageWeights, ...]


@dataclass(frozen=True)
class Estimator:
    """Estimates of a plan, for its spec or for a spec with other settings and the same layout.

    `sample` represents every sample of a step.
    """

    plan: Plan
    constants: Calibration
    spec: Spec
    sample: SampleData
    worst: bool = False

    @classmethod
    def of(
        cls, plan: Plan, constants: Calibration | None = None, *, worst: bool = False
    ) -> "Estimator":
        """Return the estimates of a plan, by default on the device that its spec names.

        With `worst`, for the largest samples that the data can give; otherwise for the mean.
        """
        spec = plan.spec
        sample = nominal_step_data(spec, worst=worst).samples[0]
        return cls(plan, constants_for(spec.nodes, constants), spec, sample, worst)

    @property
    def layout(self) -> Layout:
        """The layout of the plan."""
        return self.plan.layout

    @property
    def programs(self) -> Programs:
        """The computes and transfers of each rank; `estimates` adds the time after them."""
        return self.plan.work

    @cached_property
    def classes(self) -> tuple[RankClass, ...]:
        """The classes of ranks that hold a stage, in the order of their first ranks.

        Ranks that wait for ranks with different amounts of work are in different classes.
        """
        layout = self.layout
        places: list[tuple[tuple[int, int, int], ...]] = [()] * layout.world_size
        for number, module in enumerate(layout.modules):
            for pp, tp in product(
                range(module.grid.size(Axis.PP)), range(module.grid.size(Axis.TP))
            ):
                place = number, pp, tp
                for rank in module.grid.slice(pp=pp, tp=tp):
                    places[rank] = (*places[rank], place)
        held = {each: self._weights(each) for each in dict.fromkeys(places)}
        sizes = {each: tuple(own.numel for own in weights) for each, weights in held.items()}
        finer = refined(classes_of(layout), layout.modules)
        kinds = zip(finer, map(id, self.programs), map(sizes.get, places), strict=True)
        ranks_of: dict[tuple[object, ...], list[int]] = {}
        for rank, kind in enumerate(kinds):
            ranks_of.setdefault(kind, []).append(rank)
        return tuple(
            RankClass(layout.roles[ranks[0]], tuple(ranks), held[places[ranks[0]]])
            for ranks in ranks_of.values()
            if layout.roles[ranks[0]]
        )

    def _weights(self, places: Iterable[tuple[int, int, int]]) -> tuple[StageWeights, ...]:
        """Return the weights of the stages at the given places (module, pp, tp)."""
        return tuple(
            self._weights_of_stage(stage, tp)
            for module, pp, tp in ((self.layout.modules[n], pp, tp) for n, pp, tp in places)
            for stage in module.stages[pp :: module.grid.size(Axis.PP)]
        )

    @cached_property
    def _weights_of_stage(self) -> Callable[[Stage, int], StageWeights]:
        """The weights of a stage at a place along tp (cached: many classes hold the same)."""
        return cache(partial(stage_weights, self.spec))

    @cached_property
    def model(self) -> CostModel:
        """The times of all actions."""
        return CostModel(self.spec, self.layout, self.sample, self.constants)

    @cached_property
    def least_bytes(self) -> int:
        """A bound of the largest memory that needs no program: weights and moments of a rank."""
        layout, found = self.layout, 0
        for role in dict.fromkeys(layout.roles):
            rank = layout.roles.index(role)
            stages = [(n, s, layout[n].grid.index(Axis.TP, rank)) for n, s in role]
            held = (self._memory_of_stage(*each) for each in stages)
            found = max(found, sum(each.weights + each.moments for each in held))
        return found

    def memory(self, alike: RankClass) -> MemoryRow:
        """Return the memory of one class at its peak."""
        return self._memory_of_class(alike)

    @cached_property
    def _memory_of_class(self) -> Callable[[RankClass], MemoryRow]:
        """The memory of one class (cached: the check that a spec fits comes before its time)."""
        return cache(self._peak)

    def _peak(self, alike: RankClass) -> MemoryRow:
        rank, layout = alike.ranks[0], self.layout
        stages = {
            (name, stage): self._memory_of_stage(
                name, stage, layout[name].grid.index(Axis.TP, rank)
            )
            for name, stage in alike.role
        }
        return peak_memory(
            layout,
            stages,
            self.model.row_bytes,
            self.programs[rank],
            self.constants,
            communicators=self.communicators(rank),
        )

    @cached_property
    def _memory_of_stage(self) -> Callable[[str, int, int], StageMemory]:
        """The memory of a stage at a place along tp (cached, as the weights are)."""

        @cache
        def of(name: str, stage: int, tp: int) -> StageMemory:
            module = self.layout[name]
            work = self.model.work[name]
            return stage_memory(self.spec, self.layout, module, module.stages[stage], work, tp)

        return of

    def communicators(self, rank: int) -> int:
        """Return the number of NCCL communicators that `comm.collectives` opens on a rank."""
        # As in `GridSet`: equal sets of ranks share a communicator.
        groups = {group.ranks for group in groups_of(self.layout, rank)}
        for bridge in self.layout.bridges:
            groups.update(ranks for ranks in components(self.layout, bridge) if rank in ranks)
        # One more for all ranks, even if a group is as large.
        mine = sum(len(ranks) > 1 for ranks in groups) + (self.layout.world_size > 1)
        return mine + len(channels_of(self.layout, rank, self.programs[rank]))

    @cached_property
    def simulation(self) -> Simulation:
        """The step in seconds, for the first rank of each class."""
        costs = self.model.costs()
        meetings, programs = self._meetings, self.programs
        return simulate(self.layout, programs, costs, meetings=meetings, finds_faults=False)

    @property
    def simulation_of_all(self) -> Simulation:
        """The step in seconds, for all ranks; ranks of a class share their events."""
        return self.simulation.spread(self._meetings.stand_ins)

    @cached_property
    def _meetings(self) -> ClassMeetings:
        classes = [-1] * self.layout.world_size
        for number, alike in enumerate(self.classes):
            for rank in alike.ranks:
                classes[rank] = number
        return ClassMeetings(self.layout, classes)

    def estimates(self, rank: int | None = None) -> Estimates:
        """Return the estimates of all ranks; with `rank`, of its class only."""
        simulation, constants, costs = self.simulation, self.constants, self.model.stages
        finish = {alike: self._finish(alike) for alike in self.classes}
        update = {alike: sum(costs[stage].update for stage in alike.role) for alike in self.classes}
        metrics = self.model.links.sum_of_metrics(self.layout.world_size)
        after = metrics + constants.step_overhead * _MILLI
        present = max(finish.values()) + max(update.values()) + after
        total = max(present, self._reading)
        tflop = {alike: self._tflop(alike) for alike in self.classes}
        busy = [(len(alike.ranks), simulation.bubble(alike.ranks[0])) for alike in self.classes]
        world, step_tflop = (
            self.layout.world_size,
            sum(len(alike.ranks) * tflop[alike] for alike in self.classes),
        )
        tokens = self.layout.samples.global_batch * self.layout.seq
        return Estimates(
            device=constants.device,
            gpu_memory=self.spec.nodes.memory if self.spec.nodes else None,
            step_seconds=total,
            schedule_seconds=simulation.makespan,
            tokens_per_second_per_gpu=tokens / total / world,
            tflop=step_tflop,
            tflops_per_gpu=step_tflop / total / world,
            bubble=sum(n * bubble for n, bubble in busy) / sum(n for n, _ in busy),
            not_counted=self._not_counted(),
            ranks=tuple(
                replace(
                    self._row(alike, total, finish[alike], update[alike] + after, tflop[alike]),
                    reading=1 - present / total,
                )
                for alike in self.classes
                if rank is None or rank in alike.ranks
            ),
        )

    @property
    def _records(self) -> int:
        """The number of records in a step."""
        return self.layout.samples.global_batch * len(self.sample.records)

    @property
    def _reading(self) -> float:
        """The seconds that a rank needs to read the next step, beside the present one.

        The thread that describes it and the thread that starts kernels take turns in Python.
        """
        model, python = self.model, python_seconds(self.constants, self._records)
        starting = max(
            sum(
                model.work[name].forwards * sum(model.stages[name, stage].starting)
                for name, stage in alike.role
            )
            for alike in self.classes
        )
        return python + max(starting, agreeing_seconds(self.constants, self.layout.world_size))

    @property
    def host_costs(self) -> HostCosts:
        """What hosts and storage take."""
        most = max(self.communicators(alike.ranks[0]) for alike in self.classes)
        boxes = sum(
            len(alike.ranks) * num_boxes(self.layout[name], weights)
            for alike in self.classes
            for (name, _), weights in zip(alike.role, alike.weights, strict=True)
        )
        return host_costs(
            self.plan,
            self.constants,
            records=self._records,
            communicators=most,
            boxes=boxes,
        )

    def _not_counted(self) -> dict[str, tuple[str, ...]]:
        """Return what the estimates leave out of users' classes, which no plan imports."""
        return {
            name: missing
            for name, module in self.spec.modules.items()
            if (missing := kind_of(module.model).not_estimated)
        }

    def _finish(self, alike: RankClass) -> float:
        """Return when the gradients of a class are ready: after its program and last reduction."""
        events, costs = self.simulation.events[alike.ranks[0]], self.model.stages
        ends = [event.stop for event in events[-1:]]
        for event in events:
            action = event.slot[0]
            if action.kind is Kind.BACKWARD:
                # The reduction after the last backward is the latest.
                ends.append(event.stop + costs[action.module, action.stage or 0].reduction)
        return max(ends, default=0.0)

    def _tflop(self, alike: RankClass) -> float:
        return sum(self.model.stages[stage].flops for stage in alike.role) / TERA

    def _row(
        self, alike: RankClass, total: float, finish: float, update: float, tflop: float
    ) -> RankEstimate:
        memory, first, costs = self.memory(alike), alike.ranks[0], self.model.stages
        events = self.simulation.events[first]
        end = events[-1].stop if events else 0.0
        computing, reducing, updating = (
            each / total for each in (self.simulation.busy(first), finish - end, update)
        )

        stages = []
        for (name, stage), weights in zip(alike.role, alike.weights, strict=True):
            cost = costs[name, stage]
            stages.append(
                StageEstimate(
                    module=name,
                    stage=stage,
                    parameters=weights.numel,
                    trained_parameters=weights.trained,
                    tflop=cost.flops / TERA,
                    forward_ms=cost.forward / _MILLI,
                    backward_ms=cost.backward / _MILLI,
                    communicating=cost.communication / total,
                    all_to_all=cost.all_to_all / total,
                    sharding=cost.sharding / total,
                    recomputing=cost.recomputation / total,
                    reducing=cost.reduction / total,
                )
            )
        return RankEstimate(
            role=tuple(f"{name}.{stage}" for name, stage in alike.role),
            ranks=alike.ranks,
            parameters=sum(weights.numel for weights in alike.weights),
            stages=tuple(stages),
            memory=memory,
            allocated_bytes=memory.allocated,
            total_bytes=memory.total,
            tflop=tflop,
            bubble=self.simulation.bubble(first),
            computing=computing,
            communicating=sum(stage.communicating for stage in stages),
            all_to_all=sum(stage.all_to_all for stage in stages),
            sharding=sum(stage.sharding for stage in stages),
            recomputing=sum(stage.recomputing for stage in stages),
            starting=sum(costs[stage].starts for stage in alike.role) / total,
            waiting=max(0.0, 1 - computing - reducing - updating),
            reading=0.0,
            reducing=reducing,
            updating=updating,
        )
