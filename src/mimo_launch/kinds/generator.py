"""What generators have in common: a loss of their own, and rows that say what to make.

Decides: where these rows stand.
Relies on: nothing.
Leaves: layers, inputs and losses to `flow` and `talker`, users' own to `custom`.
"""

from dataclasses import dataclass

from mimo_launch.kinds.kind import ModelKind


@dataclass(frozen=True, slots=True)
class GeneratorKind(ModelKind):
    """A model behind language that learns to make images or clips of the data."""

    @property
    def computes_loss(self) -> bool:
        """It learns what the data have at its place."""
        return True

    @property
    def draws(self) -> bool:
        """What it finds in each pass leads to an image or a clip."""
        return True

    @property
    def reads_rows(self) -> bool:
        """It reads rows of language, which say what to make."""
        return True

    @property
    def reads_beside(self) -> bool:
        """They stand beside the tokens of their image or clip."""
        return True
