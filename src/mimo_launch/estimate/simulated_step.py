"""The course of one step in seconds, and the estimates that follow from it.

Decides: what time follows the schedule, and which shares of the step each class of ranks spends.
Relies on: `cost_model` for seconds, `schedule.deadlock_proof` for the course of a step.
Leaves: which steps are simulated, and the mean over them, to `estimates`; memory to
`memory_of_run`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.communication_times import MILLI, TERA
from mimo_launch.estimate.cost_model import CostModel
from mimo_launch.estimate.memory_of_run import MemoryPeak
from mimo_launch.estimate.rank_classes import RankClass
from mimo_launch.estimate.rows import Estimates, RankEstimate, StageEstimate
from mimo_launch.layout.layout import Layout
from mimo_launch.schedule.actions import Kind
from mimo_launch.schedule.deadlock_proof import simulate
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.rank_classes import ClassMeetings
from mimo_launch.schedule.simulation_result import Simulation


@frozen(eq=False, slots=False)
class SimulatedStep:
    """One step, simulated with the first rank of each class."""

    model: CostModel
    classes: tuple[RankClass, ...]
    meetings: ClassMeetings
    programs: Programs

    @property
    def layout(self) -> Layout:
        """The layout of the plan."""
        return self.model.layout

    @cached_property
    def simulation(self) -> Simulation:
        """The step in seconds, for the first rank of each class."""
        costs, meetings = self.model.costs(), self.meetings
        return simulate(self.layout, self.programs, costs, meetings=meetings, finds_faults=False)

    def estimates(
        self, peaks: Mapping[RankClass, MemoryPeak], not_counted: dict[str, tuple[str, ...]]
    ) -> Estimates:
        """Return the estimates of this step, for the classes with a peak of memory."""
        simulation, costs = self.simulation, self.model.stages
        finish = {alike: self._finish(alike) for alike in self.classes}
        update = {alike: sum(costs[stage].update for stage in alike.role) for alike in self.classes}
        after = self.model.after
        present = max(finish.values()) + max(update.values()) + after
        total = max(present, self.model.reading)
        tflop = {alike: self._tflop(alike) for alike in self.classes}
        busy = [(len(alike.ranks), simulation.bubble(alike.ranks[0])) for alike in self.classes]
        world, step_tflop = (
            self.layout.world_size,
            sum(len(alike.ranks) * tflop[alike] for alike in self.classes),
        )
        tokens = self.layout.samples.global_batch * self.layout.seq
        return Estimates(
            device=self.model.constants.device,
            gpu_memory=self.model.spec.nodes.memory if self.model.spec.nodes else None,
            step_seconds=total,
            schedule_seconds=simulation.makespan,
            tokens_per_second_per_gpu=tokens / total / world,
            tflop=step_tflop,
            tflops_per_gpu=step_tflop / total / world,
            bubble=sum(n * bubble for n, bubble in busy) / sum(n for n, _ in busy),
            not_counted=not_counted,
            ranks=tuple(
                replace(
                    self._row(
                        alike, peak, total, finish[alike], update[alike] + after, tflop[alike]
                    ),
                    reading=1 - present / total,
                )
                for alike, peak in peaks.items()
            ),
        )

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
        self,
        alike: RankClass,
        memory: MemoryPeak,
        total: float,
        finish: float,
        update: float,
        tflop: float,
    ) -> RankEstimate:
        first, costs = alike.ranks[0], self.model.stages
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
                    forward_ms=cost.mean[0] / MILLI,
                    backward_ms=cost.mean[1] / MILLI,
                    communicating=cost.communication / total,
                    all_to_all=cost.all_to_all / total,
                    sharding=cost.sharding / total,
                    recomputing=cost.recomputation / total,
                    reducing=cost.reduction / total,
                    offloading=cost.offloading / total,
                )
            )
        return RankEstimate(
            role=tuple(f"{name}.{stage}" for name, stage in alike.role),
            ranks=alike.ranks,
            parameters=sum(weights.numel for weights in alike.weights),
            stages=tuple(stages),
            memory=memory.row,
            allocated_bytes=memory.row.allocated,
            total_bytes=memory.row.total,
            fullest_rank=memory.rank,
            fullest_step=memory.step,
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
            offloading=sum(stage.offloading for stage in stages),
        )
