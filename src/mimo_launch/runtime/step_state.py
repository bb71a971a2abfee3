"""The inputs and the results of one step on this rank.

Decides: what a program reads and leaves besides tensors in the mailbox.
Relies on: nothing.
Leaves: filling it to `compute` and `executor`.
"""

from dataclasses import dataclass, field

from torch import Tensor

from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.models.stage_interface import Canvas, StepInputs


@dataclass(slots=True)
class Decoding:
    """Greedy answers by microbatch: the tokens so far [B, all positions] and a pass's choices."""

    tokens: dict[int, Tensor]
    choices: dict[int, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Drawing:
    """Results of generators, by generator and forward, and the last stages' outputs of a pass."""

    canvases: dict[tuple[str, int], Canvas] = field(default_factory=dict)
    found: dict[tuple[str, int], Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class StepState:
    """The inputs and the results of one step on this rank."""

    inputs: StepInputs
    views: StepViews
    # By name of the loss: this rank's part of the sum.
    losses: dict[str, Tensor]
    # By module and forward, to find a loss that is not finite.
    forward_losses: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    # This rank's part of the sum of the mean loss of each source, if data have several.
    source_losses: Tensor | None = None
    # By module that generates codes: this rank's count of right codes in an evaluation.
    right_codes: dict[str, Tensor] = field(default_factory=dict)
    # Set while the last stage chooses greedy answers instead of computing a loss.
    decoding: Decoding | None = None
    # Set while generators draw instead of computing a loss.
    drawing: Drawing | None = None

    @property
    def data(self) -> StepData:
        """The metadata of the step's samples."""
        return self.inputs.data
