"""The samples of each step: one global order, the same for every layout, packed or not.

Decides: which order a run has, how packs walk through epochs, the samples of an evaluation.
Relies on: a data set that can be read at any index in any order; `order` for permutations and
mixtures; `packing` to choose the records that share a sequence.
Leaves: sharing a step's samples among replicas to the layout.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import Dataset, SourceSamples
from mimo_launch.data.order.captions import Captions
from mimo_launch.data.order.epochs import LARGE, Epochs
from mimo_launch.data.order.mixture import MixedOrder, schedule_of
from mimo_launch.data.order.packing import Packs, best_fit, joined_packs
from mimo_launch.data.order.permutation import Int64s
from mimo_launch.data.order.record_order import RecordOrder, Sample, SampleOrder
from mimo_launch.data.random_draws import Purpose, Split, generator, order_of, split_key
from mimo_launch.data.record_facts import RecordFacts
from mimo_launch.data.step_of_records import StepOfRecords, step_of
from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.step_data import SampleData
from mimo_launch.spec.sections import HeldOut
from mimo_launch.spec.spec import FilesData, Spec

# Records of an epoch that are packed together: enough to leave only a few tokens empty.
CHUNK = 4096
# The version of the order of new runs.
NEWEST = 2


def global_order(spec: Spec, dataset: Dataset, version: int = NEWEST) -> SampleOrder:
    """Return the order of training samples for a spec; `version` is that of the run's start.

    Raises: ValueError if sources cannot be mixed as the spec says.
    """
    sources = dataset.sources() if _is_mixed(spec) else ()
    number, captions = dataset.num_samples("train"), dataset.captions()
    records = record_order(spec, number, sources, version, captions)
    if not spec.data.packing:
        return records

    return PackedOrder(records, partial(dataset.lengths, "train"), spec.batch.seq)


def record_order(
    spec: Spec,
    number: int,
    sources: Sequence[SourceSamples],
    version: int = NEWEST,
    captions: npt.NDArray[np.integer] | None = None,
) -> RecordOrder:
    """Return the order of records, without packs; `captions` are as those of a data set.

    Raises: ValueError.
    """
    batch, seed = spec.batch.global_, spec.train.seed
    draws = None if captions is None else Captions(captions, seed)
    if isinstance(spec.data, FilesData) and _is_mixed(spec) and sources:
        phases = schedule_of(spec, spec.data, sources).phases
        return MixedOrder(sources, phases, batch, seed, draws)
    return GlobalOrder(number, batch, seed, version, draws)


def _is_mixed(spec: Spec) -> bool:
    return isinstance(spec.data, FilesData) and spec.data.is_mixed


def steps_of(order: SampleOrder, num_steps: int) -> list[tuple[Sample, ...]]:
    """Return the samples of the first steps of a run."""
    found, place = [], 0
    for _ in range(num_steps):
        found.append(order.take(place))
        place = order.after(place)
    return found


class GlobalOrder(RecordOrder):
    """Sample ids in the order of training: permutations by (seed, epoch), one after the other.

    The number of samples taken so far is the whole state, so a run can resume from it on any layout
    and with any batch size. A step may reach into the next epoch or several: no sample is dropped
    at the end of an epoch. Permutations of large sets are computed place by place, unless the run
    began with the first version, which sorted random words.
    """

    def __init__(
        self,
        num_samples: int,
        global_batch: int,
        seed: int,
        version: int = NEWEST,
        captions: Captions | None = None,
    ) -> None:
        """Set up the order.

        Args:
            num_samples: Samples in an epoch.
            global_batch: Samples per step over all replicas.
            seed: `train.seed`.
            version: The version of the order in which the run began.
            captions: The captions of records; None if each has one text.

        Raises:
            ValueError: A size is not positive.
        """
        if num_samples < 1 or global_batch < 1:
            raise ValueError(f"cannot take steps of {global_batch} out of {num_samples} samples")
        self.num_samples, self.global_batch = num_samples, global_batch
        self._captions = captions
        key = split_key(seed, "train", Purpose.ORDER)
        self._epochs = _epochs(num_samples, key, computed=version > 1 and num_samples > LARGE)

    def ids(self, step: int) -> tuple[int, ...]:
        """Return the sample ids of a step, counted from 0, in a run with a constant batch size.

        Raises:
            ValueError: `step` is negative.
        """
        return self.take(step * self.global_batch)

    def between(self, first: int, end: int) -> Int64s:
        """Return the ids of the records from one place to another."""
        found = self._epochs.between(first, end)
        if self._captions is None:
            return found
        return self._captions.drawn(found, np.arange(first, end) // self.num_samples)

    def shuffled(self, epoch: int, num: int, stream: int) -> Int64s:
        """Return a random order of `num` items of an epoch, another one for each `stream` > 0."""
        return order_of(generator(self._epochs.key, epoch, stream).random_raw(num))


@lru_cache(maxsize=1)
def _epochs(number: int, key: tuple[int, int], *, computed: bool) -> Epochs:
    """Return epochs (cached: a plan orders the same records with packing and without)."""
    return Epochs(number, key, computed=computed)


class PackedOrder:
    """Packs of records in the order of training, packed chunk by chunk.

    Each `CHUNK` records of an epoch are packed separately, and their packs shuffled: a pack is a
    pure function of (seed, epoch, lengths), every record is in one pack of an epoch, and resuming
    at a place packs only one chunk. A place is the number of records before the chunk plus the
    number of packs taken from the chunk. A chunk never has more packs than records, so a place
    differs from the number of records taken by at most a chunk.
    """

    def __init__(
        self,
        records: RecordOrder,
        lengths: Callable[[Int64s], Int64s],
        seq: int,
        chunk: int = CHUNK,
    ) -> None:
        """Set up the order.

        Args:
            records: The order of records; its `global_batch` counts packs here.
            lengths: Returns the number of tokens of each of some records.
            seq: Maximum number of tokens of a pack.
            chunk: Number of records that are packed together.
        """
        self._records, self._lengths, self._seq, self._size = records, lengths, seq, chunk
        # The current step and the next one may lie in chunks of two epochs.
        self._packs = lru_cache(maxsize=4)(self._make_packs)
        # A run asks for the running step and the next one, several times.
        self._walk = lru_cache(maxsize=2)(self._walk_from)

    def take(self, first: int) -> tuple[Sample, ...]:
        """Return the records of each pack of the step that starts at a place.

        Raises:
            ValueError: `first` is negative, or a record is longer than a sequence.
        """
        return self.packs(first).tuples()

    def packs(self, first: int) -> Packs:
        """Return the packs of the step that starts at a place. Raises: ValueError as `take`."""
        return self._walk(first)[0]

    def after(self, first: int) -> int:
        """Return the place of the step after the one that starts at `first`."""
        return self._walk(first)[1]

    def place_after(self, records: int) -> int:
        """Return the place after so many records; inside a chunk, after that part of its packs."""
        epoch, inside = divmod(records, self._records.num_samples)
        chunk, rest = divmod(inside, self._size)
        if not rest:
            return records
        here = min(self._size, self._records.num_samples - chunk * self._size)
        return records - rest + -(-rest * len(self._packs(epoch, chunk)) // here)

    def _walk_from(self, place: int) -> tuple[Packs, int]:
        if place < 0:
            raise ValueError(f"there is no sample {place}")
        found, left = list[Packs](), self._records.global_batch
        while left:
            epoch, inside = divmod(place, self._records.num_samples)
            chunk, taken = divmod(inside, self._size)
            packs = self._packs(epoch, chunk)
            found.append(packs.between(taken, taken + left))
            left -= len(found[-1])
            place += len(found[-1])
            if taken + len(found[-1]) >= len(packs):
                end = min((chunk + 1) * self._size, self._records.num_samples)
                place = epoch * self._records.num_samples + end
        return joined_packs(found), place

    def _make_packs(self, epoch: int, chunk: int) -> Packs:
        begin, first = epoch * self._records.num_samples, chunk * self._size
        end = min(first + self._size, self._records.num_samples)
        found = self._records.between(begin + first, begin + end)
        packs = best_fit(self._lengths(found), self._seq)
        order = self._records.shuffled(epoch, len(packs), 1 + chunk)
        return Packs(found[packs.items], packs.ends).at(order)


def heldout_batches(
    num: HeldOut, global_batch: int, there: Sequence[int]
) -> tuple[tuple[Sample, ...], ...]:
    """Return the samples of one evaluation in batches, each sample once.

    Layouts are built for steps of `global_batch` samples, so samples without records fill the last
    batch.

    Args:
        num: Number of samples wanted, `eval.samples`: the first ones of those there.
        global_batch: Samples per batch.
        there: Ids of the samples of the held-out set.

    Raises:
        ValueError: A size is not positive.
    """
    wanted = len(there) if num == "all" else min(num, len(there))
    if min(wanted, global_batch) < 1:
        raise ValueError(f"cannot evaluate {num} of {len(there)} samples by {global_batch}")
    starts = range(0, wanted, global_batch)
    return tuple(
        tuple(there[n] if n < wanted else () for n in range(start, start + global_batch))
        for start in starts
    )


def records_of(sample: Sample) -> tuple[int, ...]:
    """Return the ids of the records of a sample."""
    return (sample,) if isinstance(sample, int) else sample


@frozen
class SplitRecords:
    """The records of one split of a data set."""

    dataset: Dataset
    split: Split

    def facts(self, ids: Int64s) -> RecordFacts:
        """Return facts about these records. Raises: IndexError."""
        return self.dataset.facts(self.split, ids)

    def describe(self, index: int) -> SampleData:
        """Return a record as a run describes it."""
        return self.dataset.describe(self.split, index)


def make_step_data(
    dataset: Dataset, split: Split, ids: Sequence[Sample], step: int
) -> StepOfRecords:
    """Return the step of the samples `ids`, in this order; equal on all ranks and cheap on each.

    Raises:
        IndexError: An id is not in the split.
    """
    if all(isinstance(sample, int) for sample in ids):
        records, ends = np.array(ids, dtype=np.int64), np.arange(len(ids) + 1)
    else:
        of_sample = [records_of(sample) for sample in ids]
        records = np.array([*chain.from_iterable(of_sample)], dtype=np.int64)
        ends = np.cumsum([0, *map(len, of_sample)])
    return step_of(SplitRecords(dataset, split), step, records, ends, heldout=split == "heldout")
