"""The estimates of a run: memory, FLOPs and time of a step, once per class of ranks.

Decides: which steps are simulated, and the mean over them.
Relies on: `data.expected_steps` for the steps of a run, `simulated_step` for one of them,
`memory_of_run` for bytes, `host_costs` for hosts and storage.
Leaves: showing it to `drawing.plan_report` and `cli`, judging it to `checks.memory`.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import field, replace
from functools import cache, cached_property

from mimo_launch.data.expected_steps import ExpectedSteps, expected_steps
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.cost_model import CostModel, StageCost
from mimo_launch.estimate.device_constants import Calibration, constants_for
from mimo_launch.estimate.forward_times import ForwardTimes
from mimo_launch.estimate.host_costs import HostCosts, host_costs, num_boxes
from mimo_launch.estimate.mean_of_steps import mean_of
from mimo_launch.estimate.memory import StageMemory
from mimo_launch.estimate.memory_of_run import MemoryOfRun, MemoryPeak
from mimo_launch.estimate.rank_classes import RankClass, rank_classes
from mimo_launch.estimate.rows import Estimates, MemoryRow
from mimo_launch.estimate.simulated_step import SimulatedStep
from mimo_launch.estimate.step_work import FOR_MEMORY, ModuleWork, StepWork
from mimo_launch.kinds.layer import Workload
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.bridge_routing import components
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.rank_groups import groups_of
from mimo_launch.layout.step_data import StepData
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.channels import channels_of
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.rank_classes import ClassMeetings
from mimo_launch.schedule.simulation_result import Simulation
from mimo_launch.spec.spec import Spec


@frozen(slots=False)
class Estimator:
    """Estimates of a plan, for its spec or for a spec with other settings and the same layout.

    `expected` are the steps of the run. If `only` is there, its steps stand for them: those that
    are simulated, and those of which the memory is estimated. All layouts share `known`, the times
    of stages, `kept`, their costs, `weights`, the memory of their weights, and `works`, the work of
    modules in the steps of `only`.
    """

    plan: Plan
    constants: Calibration
    spec: Spec
    expected: ExpectedSteps
    worst: bool = False
    only: tuple[tuple[StepData, ...], tuple[StepData, ...]] | None = None
    known: dict[Hashable, ForwardTimes] = field(default_factory=dict)
    kept: dict[Hashable, StageCost] = field(default_factory=dict)
    weights: dict[Hashable, StageMemory] = field(default_factory=dict)
    works: dict[Hashable, ModuleWork] = field(default_factory=dict)

    @classmethod
    def of(
        cls, plan: Plan, constants: Calibration | None = None, *, worst: bool = False
    ) -> "Estimator":
        """Return the estimates of a plan, by default on the device that its spec names.

        With `worst`, every sample is the largest that the data can give.
        """
        spec = plan.spec
        expected = expected_steps(spec, plan.layout)
        if worst:
            step = nominal_step_data(spec, worst=True)
            expected = replace(expected, order=None, sampled=(step,))
        return cls(plan, constants_for(spec.nodes, constants), spec, expected, worst)

    def on(self, plan: Plan) -> "Estimator":
        """Return the estimates of another plan of the same data."""
        expected = self.expected.on(plan.spec, plan.layout)
        return replace(self, plan=plan, spec=plan.spec, expected=expected)

    @property
    def layout(self) -> Layout:
        """The layout of the plan."""
        return self.plan.layout

    @property
    def programs(self) -> Programs:
        """The computes and transfers of each rank; `estimates` adds the time after them."""
        return self.plan.work

    @property
    def peak_tflops(self) -> float:
        """The peak of the device in the precision of the run."""
        return self.constants.peak_in(self.spec.train.numbers)

    @cached_property
    def classes(self) -> tuple[RankClass, ...]:
        """The classes of ranks that hold a stage, in the order of their first ranks."""
        return rank_classes(self.spec, self.layout, self.programs)

    @cached_property
    def least_bytes(self) -> int:
        """A bound of the largest memory that needs no program: weights and moments of a rank."""
        layout, memory, found = self.layout, self._memory, 0
        for role in dict.fromkeys(layout.roles):
            rank = layout.roles.index(role)
            held = [
                memory.stage(name, stage, rank, memory.steps[0].forwards(layout[name], 0)[0])
                for name, stage in role
            ]
            found = max(found, sum(each.weights + each.moments for each in held))
        return found

    def memory(self, alike: RankClass) -> MemoryRow:
        """Return the memory of one class at its peak in the run."""
        return self.peak(alike).row

    @cached_property
    def peak(self) -> Callable[[RankClass], MemoryPeak]:
        """The peak of one class in the run (cached: the check that a spec fits comes first)."""

        @cache
        def of(alike: RankClass) -> MemoryPeak:
            return self._memory.peak(alike, communicators=self.communicators(alike.ranks[0]))

        return of

    @cached_property
    def _memory(self) -> MemoryOfRun:
        heaviest = self.only[1] if self.only else self.expected.heaviest
        same: dict[Hashable, Workload] = {}
        steps = tuple(StepWork(self.layout, each, same, FOR_MEMORY) for each in heaviest)
        parts = self.spec, self.layout, self.programs, self.constants
        return MemoryOfRun(*parts, steps, self.weights)

    @cached_property
    def _work_of(self) -> Callable[[StepData], StepWork]:
        """The work of a step (cached)."""
        same: dict[Hashable, Workload] = {}
        return cache(lambda data: StepWork(self.layout, data, same))

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
    def simulated(self) -> tuple[tuple[SimulatedStep, int], ...]:
        """The steps that stand for the run, simulated, and how many are like each."""
        meetings = self._meetings
        numbers: Counter[Hashable] = Counter()
        steps: dict[Hashable, StepWork] = {}
        chosen = self.only[0] if self.only else self.expected.sampled
        for step in map(self._work_of, chosen):
            key = step.key if len(chosen) > 1 else None
            numbers[key] += 1
            steps.setdefault(key, step)
        found = []
        for key, step in steps.items():
            each = SimulatedStep(self._model(step), self.classes, meetings, self.programs)
            found.append((each, numbers[key]))
        return tuple(found)

    @cached_property
    def model(self) -> CostModel:
        """The times of the first of these steps, without its simulation."""
        first = (self.only[0] if self.only else self.expected.sampled)[0]
        return self._model(self._work_of(first))

    def _model(self, step: StepWork) -> CostModel:
        shared = self.known, self.kept, self.works if self.only else {}
        return CostModel(self.spec, self.layout, step, self.constants, *shared)

    @cached_property
    def typical(self) -> SimulatedStep:
        """The step that takes about as long as the mean of all."""
        spans = [(each.simulation.makespan, number) for each, number in self.simulated]
        mean = sum(span * number for span, number in spans) / sum(number for _, number in spans)
        return min(self.simulated, key=lambda each: abs(each[0].simulation.makespan - mean))[0]

    @property
    def brief(self) -> "Estimator":
        """The estimates of the typical step, with the memory of the steps that have a peak."""
        peaks = {self.peak(alike).step for alike in self.classes}
        fullest = tuple(step for step in self.expected.heaviest if step.step in peaks)
        return replace(self, only=((self.typical.model.step.data,), fullest), works={})

    @property
    def simulation_of_all(self) -> Simulation:
        """The typical step in seconds, for all ranks; ranks of a class share their events."""
        return self.typical.simulation.spread(self._meetings.stand_ins)

    @cached_property
    def _meetings(self) -> ClassMeetings:
        classes = [-1] * self.layout.world_size
        for number, alike in enumerate(self.classes):
            for rank in alike.ranks:
                classes[rank] = number
        return ClassMeetings(self.layout, classes)

    def estimates(self, rank: int | None = None) -> Estimates:
        """Return the estimates of all ranks; with `rank`, of its class only.

        Times are means over the steps that stand for the run, memory is the largest of the run.
        """
        peaks = {
            alike: self.peak(alike) for alike in self.classes if rank is None or rank in alike.ranks
        }
        missing = self._not_counted()
        return mean_of(
            [(each.estimates(peaks, missing), number) for each, number in self.simulated]
        )

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
            python=self.typical.model.python,
            communicators=most,
            boxes=boxes,
        )

    def _not_counted(self) -> dict[str, tuple[str, ...]]:
        """Return what the estimates leave out of users' classes, which no plan imports."""
        return {
            name: missing
            for name, module in self.spec.modules.items()
            if (missing := kind_of(module.model).not_estimated + ("loss",) * bool(module.loss))
        }
