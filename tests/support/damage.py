"""Data sets with damaged samples, and with a memory of what was read."""

from collections import Counter
from typing import Any

from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Dataset

# What is answered as it is: nothing of a sample is read.
PLAIN = {
    "answer_ends", "scores", "judges", "num_samples", "describe", "length", "sources", "captions",
    "heldout_sets", "fetch", "facts", "lengths",
}  # fmt: skip


class Damaged:
    """A data set in which asking for something of a sample raises an error.

    `faults` has them by (what is asked for, split, id); `asked` counts the questions by what.
    """

    def __init__(self, dataset: Dataset, faults: dict[tuple[str, str, int], Exception]) -> None:
        self._dataset, self._faults = dataset, faults
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._dataset, name)
        if name in PLAIN:
            return found

        def ask(split: Any, index: int, *rest: Any) -> Any:
            self.asked[name] += 1
            if (name, split, index) in self._faults:
                raise self._faults[name, split, index]
            return found(split, index, *rest)

        return ask


def damaged(made: Any, faults: dict[tuple[str, str, int], Exception]) -> Damaged:
    """Return the data set of a spec with these faults."""
    return Damaged(build_dataset(made), faults)
