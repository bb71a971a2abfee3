"""The part of a plan that the ranks of its job need: programs for each rank, groups for all.

Decides: how a rank's training program divides into gradients and update.
Relies on: `schedule` for programs and channels.
Leaves: making all of it to `plan`.
"""

from functools import cached_property
from typing import Protocol

from mimo_launch.diag.frozen import frozen
from mimo_launch.schedule.actions import Kind, Program
from mimo_launch.schedule.channels import Channel, PlannedGroups
from mimo_launch.spec.spec import Spec


@frozen(slots=False)
class RankPlan:
    """One rank's part of a plan: its programs, and the channels to others that they use."""

    rank: int
    training: Program
    evaluation: Program
    decoding: Program
    drawing: Program
    channels: tuple[Channel, ...]

    @cached_property
    def gradients(self) -> Program:
        """The training program as far as the norms of gradients, which all ranks agree on."""
        kinds = [slot[0].kind for slot in self.training]
        return self.training[: kinds.index(Kind.NORM) + 1]

    @property
    def update(self) -> Program:
        """The rest of the training program."""
        return self.training[len(self.gradients) :]


class JobPlan(PlannedGroups, Protocol):
    """The part of a `Plan` that ranks use; its facts are described there."""

    @property
    def spec(self) -> Spec:
        """The checked spec."""

    @property
    def identity(self) -> str:
        """The hash of the plan."""

    def rank(self, rank: int) -> RankPlan:
        """Return one rank's part."""
