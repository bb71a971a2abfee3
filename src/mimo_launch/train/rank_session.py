"""Sets up everything that one rank needs to run steps of a spec, and runs them.

Decides: the order of start-up, and the parts of a step: run the program, finish gradients, agree.
Relies on: an initialised default process group (or a world of one rank).
Leaves: the samples of each step to `loop`, processes to `launcher`.
"""

from collections.abc import Sequence
from types import TracebackType

import torch
import torch.distributed as dist

from mimo_launch.comm.collectives import gather_objects
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.comm.step_clock import Section
from mimo_launch.comm.warm_up import warm
from mimo_launch.comm.world import group_timeout
from mimo_launch.layers.parameter_segments import DeclaredParameter
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.step_data import StepData
from mimo_launch.models.build import build_modules, compute_dtype
from mimo_launch.optimizer.gradients import (
    PendingMetrics,
    reduce_metrics,
    sum_partial_gradients,
    sum_tied_gradients,
    watch_unreduced_gradients,
)
from mimo_launch.optimizer.module_optimizers import Updates
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.executor import Executor, no_losses
from mimo_launch.runtime.model_inputs import StepInputs
from mimo_launch.runtime.progress import Phase, Progress
from mimo_launch.schedule.actions import Kind


class RankSession:
    """This rank's groups, modules, executor and optimizers."""

    def __init__(
        self,
        plan: Plan,
        *,
        device: torch.device | None = None,
        randomise: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Compare plans, create groups, build modules.

        `progress` records what this rank is doing.

        Ranks: collective over the world. Raises: RuntimeError if ranks hold different plans.
        """
        spec = plan.spec
        self.spec, self.plan, self.progress = spec, plan, progress or Progress()
        self.progress.enter(Phase.CREATING_GROUPS)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.device = device or torch.device("cpu")
        self.layout, self.mine = plan.layout, plan.rank(self.rank)
        hashes = gather_objects(plan.identity)
        if len(set(hashes)) > 1:
            groups = {h: [r for r, other in enumerate(hashes) if other == h] for h in set(hashes)}
            raise RuntimeError(f"ranks hold different plans (hash: ranks): {groups}")
        self.grids = GridSet(
            plan,
            self.rank,
            timeout=group_timeout(spec.train.timeout, self.device),
            device=self.device,
        )
        warm(self.grids, self.mine.channels)
        self.progress.enter(Phase.BUILDING)
        self.modules = build_modules(spec, self.layout, self.grids, randomise=randomise)
        self.executor = Executor(
            spec,
            self.layout,
            self.grids,
            self.modules,
            dtype=compute_dtype(spec.train.precision),
            progress=self.progress,
        )
        self.updates = Updates(spec, self.modules)
        # This rank's losses of the last step by forward, for `non_finite` if the step is bad.
        self.losses: dict[tuple[str, int], torch.Tensor] = {}

    def __enter__(self) -> "RankSession":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.grids.close()

    def declared(self, name: str) -> list[DeclaredParameter]:
        """Return the live parameters of one of this rank's modules with their segments."""
        return list(self.modules[name].declared())

    def gradients(self, inputs: StepInputs, flags: Sequence[int] = ()) -> PendingMetrics:
        """Run the program on a step's samples and finish the gradients; do not change the weights.

        This rank's `flags` are returned summed over all ranks. On CUDA this returns before the
        device has done the work; reading the totals waits for it.

        Ranks: collective over the world.
        """
        self.updates.clear()
        count_zeros = self.spec.train.count_zero_grads
        if not has_terms(self.layout, inputs.data):
            # The whole step has nothing to learn: every rank knows that, and none runs it.
            self.progress.enter(Phase.REDUCING)
            losses = no_losses(self.layout, self.device)
            return reduce_metrics(self.layout, {}, losses, flags, count_zeros=count_zeros)
        self.progress.enter(Phase.PROGRAM)
        result = self.executor.run(self.mine.stage_slots, inputs)
        self.losses = result.forward_losses
        self.progress.enter(Phase.REDUCING)
        clock, losses = self.executor.clock, result.losses
        with clock.span(Section.PARTIAL_SUMS):
            self._sum_partial()
        with clock.span(Section.TOTALS):
            return reduce_metrics(self.layout, self.modules, losses, flags, count_zeros=count_zeros)

    def _sum_partial(self) -> None:
        """Sum gradients that are split into terms over ranks: over tp, and for tied embeddings."""
        for module in self.modules.values():
            watch_unreduced_gradients(module)
        for action in self.mine.sums:
            module, declared = self.modules[action.module], self.declared(action.module)
            if action.kind is Kind.SUM_TP:
                sum_partial_gradients(declared, module.context.tp, module.before_tp_sum)
            else:
                sum_tied_gradients(declared, self.grids.tied(), module.before_tp_sum)

    def update(self, step: int, metrics: PendingMetrics) -> None:
        """Clip and apply the gradients; bad gradients update nothing."""
        self.progress.enter(Phase.UPDATING)
        clip = self.spec.optimizer.clip
        with self.executor.clock.span(Section.UPDATE):
            divisor = None if clip is None else metrics.divisor(clip)
            self.updates.apply(step, skip=metrics.bad, divisor=divisor)


def has_terms(layout: Layout, data: StepData) -> bool:
    """Return whether a step has anything to learn."""
    return any(data.num_terms(loss.module, loss.depth) for loss in layout.losses)
