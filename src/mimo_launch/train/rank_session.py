"""Sets up everything that one rank needs to run steps of a spec, and runs them.

Decides: the order of start-up, and the two halves of a step: gradients with their norms, update.
Relies on: an initialised default process group (or a world of one rank).
Leaves: the samples of each step to `loop`, processes to `launcher`.
"""

import gc
from collections.abc import Sequence
from types import TracebackType

import torch
import torch.distributed as dist

from mimo_launch.comm.collectives import warm
from mimo_launch.comm.objects import gather_objects
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.comm.world import group_timeout
from mimo_launch.layers.parallel_context import torch_type
from mimo_launch.layers.parameter_segments import DeclaredParameter
from mimo_launch.layout.layout import Layout, bytes_of_regions
from mimo_launch.layout.step_data import StepData
from mimo_launch.models.build import build_modules
from mimo_launch.models.stage_interface import StepInputs
from mimo_launch.optimizer.module_optimizers import Updates
from mimo_launch.optimizer.step_end import StepEnd
from mimo_launch.optimizer.step_metrics import PendingMetrics, reduce_metrics
from mimo_launch.plan.rank_plan import JobPlan
from mimo_launch.runtime.executor import Executor, no_losses
from mimo_launch.runtime.progress import Phase, Progress
from mimo_launch.spec.base import LANGUAGE


class RankSession:
    """This rank's groups, modules, executor and optimizers."""

    def __init__(
        self,
        plan: JobPlan,
        *,
        device: torch.device | None = None,
        randomise: bool = False,
        quick: bool = False,
        draw: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """Compare plans, create groups, build modules.

        `randomise` and `quick` are those of `init_parameters`. Without `draw`, weights have no
        values until sources have filled some of them and `draw_rest` draws the others. `progress`
        records what this rank is doing.

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
        if most := bytes_of_regions(spec, self.layout):
            self.grids.open_copies(LANGUAGE, most)
        self.progress.enter(Phase.BUILDING)
        self.modules = build_modules(spec, self.layout, self.grids)
        if draw:
            for module in self.modules.values():
                module.unfilled.draw(randomise=randomise, quick=quick)
        self.executor = Executor(
            spec,
            self.layout,
            self.grids,
            self.modules,
            dtype=torch_type(spec.train.numbers.computed),
            progress=self.progress,
        )
        self.updates = Updates(spec, self.modules)

    def __enter__(self) -> "RankSession":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Destroy every group; free weights, gradients, moments and activations."""
        try:
            self.grids.close()
        finally:
            for name in ("modules", "executor", "updates", "ending"):
                vars(self).pop(name, None)
            # FSDP2's hooks on a layer refer to records that refer to the layer, so a network would
            # keep its memory beside the next session until garbage is collected by chance.
            gc.collect()

    def declared(self, name: str) -> list[DeclaredParameter]:
        """Return the live parameters of one of this rank's modules with their segments."""
        return list(self.modules[name].declared())

    def draw_rest(self) -> None:
        """Draw the weights that no source has filled. Raises: CustomClassError."""
        self.progress.enter(Phase.DRAWING)
        for module in self.modules.values():
            module.unfilled.draw()

    def step(self, inputs: StepInputs, flags: Sequence[int] = ()) -> PendingMetrics:
        """Run a step as the plan says, from its first forward to the update of the weights.

        This rank's `flags` are returned summed over all ranks. On CUDA this returns before the
        device has done the work; reading the totals waits for it.

        Ranks: collective over the world.
        """
        metrics = self.gradients(inputs, flags)
        if metrics.own is not None:
            self.update()
        return metrics

    def gradients(self, inputs: StepInputs, flags: Sequence[int] = ()) -> PendingMetrics:
        """Run a step as far as the norms of its gradients; do not change the weights."""
        self.updates.clear()
        if not has_terms(self.layout, inputs.data):
            # The whole step has nothing to learn: every rank knows that, and none runs it.
            self.progress.enter(Phase.REDUCING)
            nothing, count = no_losses(self.layout, self.device), self.spec.train.count_zero_grads
            return reduce_metrics(self.layout, {}, nothing, flags, count_zeros=count)
        self.ending = self.step_end(flags)
        self.executor.run(self.mine.gradients, inputs, self.ending)
        return self.ending.metrics

    def step_end(self, flags: Sequence[int]) -> StepEnd:
        """Return what ends the next step."""
        return StepEnd(self.grids, self.updates, flags)

    def update(self) -> None:
        """Run the rest of the step of `gradients`; bad gradients update nothing."""
        self.executor.end(self.mine.update, self.ending)


def has_terms(layout: Layout, data: StepData) -> bool:
    """Return whether a step has anything to learn."""
    return any(data.num_terms(loss.module, loss.depth) for loss in layout.losses)
