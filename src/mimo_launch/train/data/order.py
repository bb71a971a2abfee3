"""Which samples a step takes: one global order, the same for every layout.

Decides: the order of an epoch, how steps walk through epochs, and the samples of an evaluation.
Relies on: a data set that answers for any index in any order.
Leaves: sharing a step's samples among replicas to the layout.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mimo_launch.layout.data_plan import DataPlan
from mimo_launch.train.data.dataset import Dataset
from mimo_launch.train.data.draws import Purpose, Split, generator, order_of, split_key


class GlobalOrder:
    """Sample ids in the order of training: permutations by (seed, epoch), one after the other.

    The number of samples taken so far is the whole state, so a run resumes from it alone, on any
    layout and with any batch. A step may reach into the next epoch (or several): no sample is
    dropped at the end of one.
    """

    def __init__(self, num_samples: int, global_batch: int, seed: int) -> None:
        """Set up the order.

        Args:
            num_samples: Samples in an epoch.
            global_batch: Samples per step over all replicas.
            seed: `train.seed`.

        Raises:
            ValueError: A size is not positive.
        """
        if num_samples < 1 or global_batch < 1:
            raise ValueError(f"cannot take steps of {global_batch} out of {num_samples} samples")
        self._num_samples, self._global_batch = num_samples, global_batch
        self._key = split_key(seed, "train", Purpose.ORDER)
        # Two epochs meet in a step; more than a few would keep long permutations for nothing.
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)

    def ids(self, step: int) -> tuple[int, ...]:
        """Ids of the samples of a step (counted from 0) of a run with one batch size throughout.

        Raises:
            ValueError: `step` is negative.
        """
        return self.take(step * self._global_batch)

    def take(self, first: int) -> tuple[int, ...]:
        """Ids of the samples of the step that starts when `first` samples have been taken.

        Raises:
            ValueError: `first` is negative.
        """
        if first < 0:
            raise ValueError(f"there is no sample {first}")
        end = first + self._global_batch
        ids: list[int] = []
        while first < end:
            epoch, offset = divmod(first, self._num_samples)
            taken = self._epoch(epoch)[offset : offset + end - first]
            ids += taken.tolist()
            first += len(taken)
        return tuple(ids)

    def _make_epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        return order_of(generator(self._key, epoch).random_raw(self._num_samples))


def heldout_batches(num: int, global_batch: int, num_samples: int) -> tuple[tuple[int, ...], ...]:
    """Ids of the samples of one evaluation, in whole batches.

    Layouts are built for steps of `global_batch` samples, so the last batch is filled up with the
    samples that follow; they start again from 0 only when the split is exhausted.

    Args:
        num: Samples wanted, `eval.samples`.
        global_batch: Samples per batch.
        num_samples: Samples in the held-out split.

    Returns:
        Batches of exactly `global_batch` ids, together at least `num`; cut the flat list at `num`
        to count the wanted ones alone.

    Raises:
        ValueError: A size is not positive.
    """
    if min(num, global_batch, num_samples) < 1:
        raise ValueError(f"cannot evaluate {num} of {num_samples} samples by {global_batch}")
    return tuple(
        tuple(position % num_samples for position in range(start, start + global_batch))
        for start in range(0, num, global_batch)
    )


def make_data_plan(dataset: Dataset, split: Split, ids: Sequence[int], step: int) -> DataPlan:
    """Plan of the samples `ids`, in this order; equal on all ranks and cheap on each.

    Raises:
        IndexError: An id is not in the split.
    """
    return DataPlan(step, tuple(dataset.plan(split, index) for index in ids))
