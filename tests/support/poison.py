"""Numbers that are not finite, planted at one place of one rank's step.

Each function arms a session: from then on one step goes wrong at that place, and only there; what
spreads from it is the product's own doing.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.optimizer.step_end import StepEnd
from mimo_launch.runtime.mailbox import Address
from mimo_launch.runtime.step_state import StepState
from mimo_launch.train.rank_session import RankSession

POISONED_STEP = 1
NAN = float("nan")


class PoisonedImages:
    """A data set in which the images of some samples are NaN."""

    def __init__(self, dataset: Any, samples: set[int]) -> None:
        self._dataset, self._samples = dataset, samples

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def images(self, split: str, index: int, encoder: str, only: Any = None) -> list[np.ndarray]:
        found: list[np.ndarray] = self._dataset.images(split, index, encoder, only)
        return [image * np.float32(NAN) for image in found] if index in self._samples else found


def poison_backward(
    session: RankSession, module: str, stage: int, rank: int, *, at: int = POISONED_STEP
) -> None:
    """What a stage's backward starts from is NaN in its first microbatch or group, on one rank."""
    stages = session.executor.stages
    correct = stages.backward

    def poisoned(action: Any, step: Any) -> None:
        meant = (action.module, action.stage, action.index) == (module, stage, 0)
        if meant and session.rank == rank and step.data.step == at:
            here, mail = Address(module, stage, 0), stages.mail
            last = stages.modules[module].layout.stages[stage].is_last
            if module == "language" and last:
                mail.outputs.put(here, mail.outputs.take(here) * NAN)
            else:
                # What a whole module makes leaves over its bridges.
                leaving = [Address(b.name, None, 0) for b in stages.layout.bridges_from(module)]
                for each in leaving if last else [here]:
                    mail.gradients.peek(each).fill_(NAN)
        correct(action, step)

    stages.backward = poisoned  # type: ignore[method-assign]


def after_backwards(session: RankSession, spoil: Callable[[StepState], None]) -> None:
    """Call `spoil` in every step, after its backwards and before the sums that end it."""

    class SpoiltEnd(StepEnd):
        def begin(self, step: StepState) -> None:
            spoil(step)
            super().begin(step)

    session.step_end = lambda flags: SpoiltEnd(  # type: ignore[method-assign]
        session.grids, session.updates, flags
    )


def poison_shard(session: RankSession, module: str, rank: int, *, tp_grad: str) -> None:
    """One element of a rank's shard is NaN once gradients are summed over dp x cp."""

    def spoil(step: StepState) -> None:
        if session.rank == rank and step.data.step == POISONED_STEP:
            gradient = next(
                item.parameter.grad
                for item in session.declared(module)
                if item.placed[0].segment.tp_grad == tp_grad
                and local_tensor(item.parameter.grad).numel()
            )
            with torch.no_grad():
                local_tensor(gradient).view(-1)[0] = NAN

    after_backwards(session, spoil)
