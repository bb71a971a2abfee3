"""Ends a step on this rank: one handler for each kind of action after the last backward.

Decides: what each of these actions does. A new one is a kind in `schedule.actions`, its place in
`schedule.step_end`, and a handler here.
Relies on: the plan for their order; `gradients` for sums, `step_metrics` for norms.
Leaves: running them in that order to `runtime.executor`, the update of a weight to `Updates`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from mimo_launch.comm.process_groups import GridSet
from mimo_launch.comm.step_clock import Section
from mimo_launch.optimizer.gradients import sum_partial_gradients, sum_tied_gradients
from mimo_launch.optimizer.module_optimizers import Updates
from mimo_launch.optimizer.step_metrics import (
    PendingMetrics,
    SourceLosses,
    note_flags,
    reduce_metrics,
)
from mimo_launch.runtime.step_state import StepState
from mimo_launch.schedule.actions import Action, Kind


@dataclass(slots=True)
class StepEnd:
    """The end of one step; `begin` sets `step`, and the action NORM sets `metrics`.

    `flags` are this rank's, see `reduce_metrics`.
    """

    grids: GridSet
    updates: Updates
    flags: Sequence[int] = ()
    step: StepState = field(init=False)
    metrics: PendingMetrics = field(init=False)

    def begin(self, step: StepState) -> None:
        """Note whether this rank's own gradients are finite, before sums mix them with others."""
        self.step = step
        with self.grids.clock.span(Section.PARTIAL_SUMS):
            for module in self.updates.modules.values():
                module.note_unreduced_gradients()

    @property
    def handlers(self) -> Mapping[Kind, tuple[Section, Callable[[Action], None]]]:
        """What each kind of action does, and the section of a step that it counts for."""
        return {
            Kind.SUM_TP: (Section.PARTIAL_SUMS, self._sum_tp),
            Kind.SUM_TIED: (Section.PARTIAL_SUMS, self._sum_tied),
            Kind.NORM: (Section.TOTALS, self._norm),
            Kind.ORTHOGONALISE: (Section.UPDATE, self._orthogonalise),
            Kind.UPDATE: (Section.UPDATE, self._update),
        }

    def run(self, action: Action) -> None:
        """Carry out one action. Ranks: collective, by its kind."""
        section, handle = self.handlers[action.kind]
        with self.grids.clock.span(section):
            handle(action)

    def _sum_tp(self, action: Action) -> None:
        module = self.updates.modules[action.module]
        sum_partial_gradients(list(module.declared()), module.context.tp, module.before_tp_sum)

    def _sum_tied(self, action: Action) -> None:
        module = self.updates.modules[action.module]
        group = self.grids.tied(action.module)
        sum_tied_gradients(list(module.declared()), group, module.before_tp_sum)

    def _norm(self, action: Action) -> None:
        """Agree on loss, norms and flags; clipping and the decision to skip follow from them."""
        modules, count_zeros = self.updates.modules, self.updates.spec.train.count_zero_grads
        found = reduce_metrics(
            self.grids.layout,
            modules,
            self.step.losses,
            self.flags,
            count_zeros=count_zeros,
            sources=SourceLosses(self.step.data.labels_by_source, self.step.source_losses),
        )
        of_forwards, squares = self.step.forward_losses, found.unshared_squares
        own = note_flags(modules, of_forwards, squares, self.grids.device)
        self.metrics = replace(found, own=own)

    def _orthogonalise(self, action: Action) -> None:
        """Replace the gradients of matrices by the directions in which they will move."""
        for each in self.updates.by_module[action.module]:
            if each.rule.whole_matrices:
                module = self.updates.modules[action.module]
                each.torch.orthogonalise(module, self.grids, self.metrics.bad, self._divisor)

    def _update(self, action: Action) -> None:
        """Clip and apply the gradients; bad gradients update nothing."""
        self.updates.apply(self.step.data.step, skip=self.metrics.bad, divisor=self._divisor)

    @property
    def _divisor(self) -> Tensor | None:
        """The divisor that clips gradients."""
        clip = self.updates.spec.optimizer.clip
        return None if clip is None else self.metrics.divisor(clip)
