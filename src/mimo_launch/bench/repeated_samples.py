"""The samples of a few steps, read once and used in turn.

Decides: how many steps differ; that a bench never waits for storage or decoders.
Relies on: `train.prefetch` for the samples, those of the spec's own data set.
Leaves: bringing them to the device, which is a part of a step, to `runtime`.
"""

from dataclasses import replace

from mimo_launch.data.random_draws import Split
from mimo_launch.data.sample_order import Order, Sample, steps_of
from mimo_launch.layout.step_data import StepData
from mimo_launch.runtime.progress import Phase, Whereabouts
from mimo_launch.train.loader import ReadInputs
from mimo_launch.train.prefetch import StepReader

# Steps differ in lengths and images. More of them would fill memory, and the steps that warm up
# would not meet all of them.
NUM_STEPS = 4


class Rotation:
    """Answers like a `StepReader`, from memory."""

    def __init__(self, reader: StepReader, order: Order, where: Whereabouts) -> None:
        """Read the first steps of a run; `where` is told of each that is used.

        Ranks: collective over the world.
        """
        self._where = where
        first = enumerate(steps_of(order, NUM_STEPS))
        self._steps = [reader.read("train", ids, step) for step, ids in first]

    def read(self, split: Split, ids: tuple[Sample, ...], step: int) -> ReadInputs:
        """Return the samples of a step; its number is the one asked for."""
        self._where.enter(Phase.READING, step + 1)
        return replace(self._steps[step % NUM_STEPS], data=self.data_of(step))

    def data_of(self, step: int) -> StepData:
        """Return what the samples of a step look like."""
        return replace(self._steps[step % NUM_STEPS].data, step=step)

    def read_ahead(self, ids: tuple[Sample, ...], step: int) -> None:
        """Do nothing: all has been read."""
