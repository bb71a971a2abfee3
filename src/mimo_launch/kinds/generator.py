"""What generators have in common: a separate loss, and rows that say what to make.

Decides: where these rows are placed.
Relies on: nothing.
Leaves: layers, inputs and losses to `flow` and `talker`, users' classes to `custom`.
"""

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.facts import RowReading
from mimo_launch.kinds.kind import ModelKind


@frozen
class ReadingBeside(RowReading):
    """Rows come beside the tokens of their image or clip."""

    @property
    def takes_rows(self) -> bool:
        """It reads rows of language, which say what to make."""
        return True

    @property
    def beside(self) -> bool:
        """These rows come beside the tokens of their image or clip."""
        return True


@frozen
class GeneratorKind(ModelKind):
    """A model after language that learns to generate the images or clips of the data."""

    @property
    def computes_loss(self) -> bool:
        """It learns the images or clips of the data."""
        return True

    @property
    def draws(self) -> bool:
        """Its passes can generate an image or a clip."""
        return True

    @property
    def reading(self) -> RowReading:
        """Rows of language say what to make; they come beside the tokens of their image or clip."""
        return ReadingBeside()
