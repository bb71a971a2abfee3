"""What an order of samples answers: the samples of any step, from a place alone.

Decides: that a place, a number that starts at 0, is the whole state of an order.
Relies on: nothing.
Leaves: orders to `sample_order` and `mixture`.
"""

from typing import Protocol

from mimo_launch.data.order.permutation import Int64s

# A sample of a step: the id of a record, or the ids of all records of a pack; () is padding.
Sample = int | tuple[int, ...]


class SampleOrder(Protocol):
    """The samples of training, one step after another.

    A place in the order is a number that starts at 0. It is the whole state of the order.
    """

    def take(self, first: int) -> tuple[Sample, ...]:
        """Return the samples of the step that starts at a place."""
        ...

    def after(self, first: int) -> int:
        """Return the place of the step after the one that starts at `first`."""
        ...


class RecordOrder(SampleOrder, Protocol):
    """Records in the order of training, of which any are known without those before.

    A place is the number of records before it. `num_samples` records are an epoch.
    """

    num_samples: int
    global_batch: int

    def between(self, first: int, end: int) -> Int64s:
        """Return the ids of the records from one place to another."""
        ...

    def shuffled(self, epoch: int, num: int, stream: int) -> Int64s:
        """Return a random order of `num` items of an epoch, another one for each `stream` > 0."""
        ...

    def take(self, first: int) -> tuple[int, ...]:
        """Return the ids of the step that starts when `first` samples have been taken.

        Raises:
            ValueError: `first` is negative.
        """
        if first < 0:
            raise ValueError(f"there is no sample {first}")
        return tuple(self.between(first, self.after(first)).tolist())

    def after(self, first: int) -> int:
        """Return the number of samples taken after the step that starts at `first`."""
        return first + self.global_batch
