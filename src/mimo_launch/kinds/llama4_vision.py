"""The tower of Llama 4: what it does not share with other vision transformers.

Decides: how its patches rotate, that its class token is last, an activation after its projector.
Relies on: `vision` for the rest.
Leaves: nothing.
Source: `transformers` 5.24, models/llama4.
"""

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.vision import PatchTurns, VisionKind
from mimo_launch.spec.llama4_vision import Llama4VisionModel


@frozen
class Llama4VisionKind(VisionKind):
    """A tower of Llama 4."""

    model: Llama4VisionModel

    @property
    def turns(self) -> PatchTurns:
        """How queries and keys rotate by the place of a patch."""
        theta = self.model.rope_theta
        return PatchTurns(theta=theta, first=1, column_first=True, pairs="neighbours")

    @property
    def class_is_last(self) -> bool:
        """Whether the last row of the table is that of the class token."""
        return True

    @property
    def activates_rows(self) -> bool:
        """Whether an activation precedes the map after the projector."""
        return True
