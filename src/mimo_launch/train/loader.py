"""The samples of a step, read when an action asks for them.

Decides: nothing about order; it binds a data set to the ids of one step.
Relies on: `data.order` for the ids.
Leaves: decoding to the data set.
"""

from dataclasses import dataclass

import numpy as np

from mimo_launch.layout.data_plan import DataPlan
from mimo_launch.train.data.dataset import Dataset
from mimo_launch.train.data.draws import Split
from mimo_launch.train.data.order import make_data_plan


@dataclass(frozen=True, slots=True)
class DatasetInputs:
    """The samples of one step by their position in it."""

    dataset: Dataset
    split: Split
    plan: DataPlan

    def text(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and labels, int64 [seq] each."""
        return self.dataset.text(self.split, self.plan.samples[sample].id)

    def documents(self, sample: int) -> np.ndarray:
        """Return the document of each position, int64 [seq]."""
        return self.dataset.documents(self.split, self.plan.samples[sample].id)

    def images(self, sample: int, encoder: str) -> list[np.ndarray]:
        """Return the images of a sample for one encoder."""
        return self.dataset.images(self.split, self.plan.samples[sample].id, encoder)

    def answer(self, sample: int) -> tuple[int, ...]:
        """Return the tokens of the true answer, without the end token."""
        return self.dataset.answer(self.split, self.plan.samples[sample].id)


def step_inputs(dataset: Dataset, split: Split, ids: tuple[int, ...], step: int) -> DatasetInputs:
    """Return the inputs of one step made of the given samples."""
    return DatasetInputs(dataset, split, make_data_plan(dataset, split, ids, step))
