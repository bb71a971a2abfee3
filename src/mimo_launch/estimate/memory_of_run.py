"""The peak memory of a class of ranks over the heaviest steps of a run.

Decides: which ranks of a class may need the most: those of the replicas with the most work in a
step, and at once.
Relies on: `step_work` for the work of each replica, `memory` for a stage, `memory_peak` for a step.
Leaves: the heaviest steps to `data.expected_steps`.
"""

from collections.abc import Hashable, Iterator
from dataclasses import field

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.memory import StageMemory, row_bytes, stage_memory
from mimo_launch.estimate.memory_peak import peak_memory
from mimo_launch.estimate.rank_classes import RankClass
from mimo_launch.estimate.rows import MemoryRow
from mimo_launch.estimate.step_work import StepWork
from mimo_launch.kinds.layer import Workload
from mimo_launch.layout.layout import Layout, ModuleLayout, bytes_of_regions
from mimo_launch.schedule.generate import Programs
from mimo_launch.spec.base import LANGUAGE, Axis
from mimo_launch.spec.spec import Spec


@frozen
class MemoryPeak:
    """The memory of a class at its peak; `rank` reaches it in a `step`, counted from 0."""

    row: MemoryRow
    rank: int
    step: int


@frozen(eq=False, slots=False)
class MemoryOfRun:
    """The memory of ranks in these steps, which share their works.

    All layouts of the same models share `weights`, the memory of stages without activations.
    """

    spec: Spec
    layout: Layout
    programs: Programs
    constants: Calibration
    steps: tuple[StepWork, ...]
    weights: dict[Hashable, StageMemory]
    _stages: dict[tuple[str, int, int, int], StageMemory] = field(default_factory=dict, init=False)

    def peak(self, alike: RankClass, *, communicators: int) -> MemoryPeak:
        """Return the largest memory of a class, whose ranks open so many communicators."""
        best: MemoryPeak | None = None
        copied = bytes_of_regions(self.spec, self.layout)
        beside = copied if any(name == LANGUAGE for name, _ in alike.role) else 0
        for step in self.steps:
            for rank in self._fullest(step, alike):
                row = peak_memory(
                    self.layout,
                    {
                        (name, stage): [self.stage(name, stage, rank, work) for work in works]
                        for name, stage in alike.role
                        for works in (step.forwards_on(self.layout[name], rank),)
                    },
                    {name: self._row_bytes(step, name, rank) for name in self.layout.bridges},
                    self.programs[rank],
                    self.constants,
                    communicators=communicators,
                    beside=beside,
                )
                if best is None or row.total > best.row.total:
                    best = MemoryPeak(row, rank, step.data.step)
        if best is None:
            raise ValueError("a run has no steps")
        return best

    def stage(self, name: str, stage: int, rank: int, work: Workload) -> StageMemory:
        """Return the memory of a stage on a rank, for a forward with this work."""
        module = self.layout[name]
        tp = module.grid.index(Axis.TP, rank)
        key = name, stage, tp, id(work)
        if key not in self._stages:
            place = self.spec, self.layout, module, module.stages[stage]
            self._stages[key] = stage_memory(*place, work, tp, self.weights)
        return self._stages[key]

    def _row_bytes(self, step: StepWork, bridge: str, rank: int) -> list[tuple[int, int]]:
        """Return the bytes that a rank sends and receives in each transfer of a bridge."""
        path = self.layout.bridges[bridge]
        width, sent, received = row_bytes(self.spec, path), step.no_rows(path), step.no_rows(path)
        if rank in (source := self.layout[path.source].grid):
            sent = step.sent(path, source.index(Axis.DP, rank))
        if rank in (target := self.layout[path.target].grid):
            received = step.received(path, target.index(Axis.DP, rank))
        return [(width * out, width * into) for out, into in zip(sent, received, strict=True)]

    def _fullest(self, step: StepWork, alike: RankClass) -> Iterator[int]:
        """Yield ranks of a class whose replicas have the most to do, in all or at once."""
        found: set[int] = set()
        for module in map(self.layout.__getitem__, dict.fromkeys(name for name, _ in alike.role)):
            looked_at = step.replicas(module)
            ranks = {module.grid.index(Axis.DP, rank): rank for rank in reversed(alike.ranks)}
            mine = sorted(ranks.keys() & set(looked_at)) or sorted(ranks)[:1]
            loads = {replica: self._load(step, module, replica) for replica in mine}
            for part in (0, 1):
                found.add(ranks[max(mine, key=lambda replica: loads[replica][part])])
        yield from sorted(found)

    def _load(self, step: StepWork, module: ModuleLayout, replica: int) -> tuple[int, int]:
        """Return the tokens and rows of a replica: in the step, and the most of a forward."""
        held = step.tokens_held(module, replica)
        rows = [step.received(path, replica) for path in self.layout.bridges_into(module.name)]
        return sum(held) + sum(map(sum, rows)), max(held) + sum(map(max, rows))
