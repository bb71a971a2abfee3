"""Sources mixed by weights: the order of their samples.

Decides: that each block of `BLOCK` places has the same number of samples of each source, in random
places, until weights change; that a source goes on where it was, through epochs of its own; how
weights of tokens become numbers of samples; that weights change with a block, never inside of one.
Relies on: `block_counts` for the numbers; the index for samples and the mean length of each source.
Leaves: steps to `sample_order`.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from mimo_launch.data.dataset import SourceSamples
from mimo_launch.data.order.block_counts import BLOCK, counts_of
from mimo_launch.data.order.captions import Captions
from mimo_launch.data.order.epochs import LARGE, Epochs
from mimo_launch.data.order.permutation import Int64s
from mimo_launch.data.order.record_order import RecordOrder
from mimo_launch.data.random_draws import Purpose, generator, order_of, split_key
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.spec import FilesData, Spec

# More places than any run has: a mixture has no epoch of its own.
_ENDLESS = 1 << 62


@frozen
class Phase:
    """From a block on, the samples of each source in a block."""

    block: int
    counts: tuple[int, ...]


@frozen
class Schedule:
    """The phases of a run, and the place after its last step: exact unless records are packed."""

    phases: tuple[Phase, ...]
    end: int


def schedule_of(spec: Spec, data: FilesData, sources: Sequence[SourceSamples]) -> Schedule:
    """Return the numbers of samples of each source from the start on. Raises: BadMixture."""
    names, batch = [each.name for each in sources], spec.batch.global_
    lengths = [each.tokens / each.number for each in sources]
    weights: Mapping[str, float] = data.source_weights
    phases, place, before = list[Phase](), 0.0, 0

    def place_at(step: int) -> float:
        records = _records_each(spec, phases[-1], lengths) if phases else 0
        return place + (step - before) * batch * records

    for step, changed in ((0, {}), *((each.step, each.weights) for each in data.weight_changes)):
        weights = {**weights, **changed}
        shares = [weights[name] for name in names]
        if data.weigh == "tokens":
            shares = [share / length for share, length in zip(shares, lengths, strict=True)]
        place, before = place_at(step), step
        phases.append(Phase(-(-int(place) // BLOCK), counts_of(shares, names)))
    return Schedule(tuple(phases), int(place_at(spec.train.steps)))


def begun_phases(spec: Spec, sources: Sequence[SourceSamples], place: int) -> tuple[Phase, ...]:
    """Return the phases that began before a place; none without weights. Raises: BadMixture."""
    data = spec.data
    if not isinstance(data, FilesData) or not data.is_mixed or not sources:
        return ()
    phases = schedule_of(spec, data, sources).phases
    return tuple(each for each in phases if each.block * BLOCK < place)


def _records_each(spec: Spec, phase: Phase, lengths: Sequence[float]) -> float:
    """Return the records of a sequence: 1 or, packed, about as many as there is room for."""
    if not spec.data.packing:
        return 1
    tokens = sum(count * length for count, length in zip(phase.counts, lengths, strict=True))
    mean = tokens / BLOCK
    return max(1.0, spec.batch.seq / mean)


class MixedOrder(RecordOrder):
    """The ids of samples of several sources, in the order of training.

    A place is the number of samples taken so far, and the whole state. Ids of a source are
    consecutive. Each source is read in epochs of its own, each in another random order.
    """

    num_samples = _ENDLESS

    def __init__(
        self,
        sources: Sequence[SourceSamples],
        phases: Sequence[Phase],
        global_batch: int,
        seed: int,
        captions: Captions | None = None,
    ) -> None:
        """Mix sources; the first phase begins with block 0, and blocks of phases never decrease.

        With `captions`, each epoch of a source has one caption of each of its records.
        """
        self.global_batch, self._captions = global_batch, captions
        self._sources, self._phases = tuple(sources), tuple(phases)
        self._key = split_key(seed, "train", Purpose.MIXTURE)
        key = split_key(seed, "train", Purpose.SOURCE)
        self._epochs = [
            Epochs(each.number, key, number, computed=each.number > LARGE)
            for number, each in enumerate(sources)
        ]
        self._block = lru_cache(maxsize=8)(self._make_block)

    def between(self, first: int, end: int) -> Int64s:
        """Return the ids of the samples from one place to another."""
        blocks = range(first // BLOCK, -(-end // BLOCK))
        found = [np.empty(0, dtype=np.int64), *map(self._block, blocks)]
        begin = blocks.start * BLOCK
        return np.concatenate(found)[first - begin : end - begin]

    def shuffled(self, epoch: int, num: int, stream: int) -> Int64s:
        """Return a random order of `num` items, another one for each `stream` > 0."""
        return order_of(generator(self._key, epoch, stream).random_raw(num))

    def taken(self, block: int) -> list[int]:
        """Return the number of samples of each source before a block."""
        found = [0] * len(self._sources)
        for number, phase in enumerate(self._phases):
            later = self._phases[number + 1].block if number + 1 < len(self._phases) else block
            blocks = max(0, min(later, block) - phase.block)
            found = [n + blocks * count for n, count in zip(found, phase.counts, strict=True)]
        return found

    def _make_block(self, block: int) -> Int64s:
        phase = next(each for each in reversed(self._phases) if each.block <= block)
        # The words of a block are those of stream 0; packs have the others.
        places = order_of(generator(self._key, 1 + block).random_raw(BLOCK))
        ids, at = np.empty(BLOCK, dtype=np.int64), 0
        everything = zip(self._sources, self._epochs, self.taken(block), phase.counts, strict=True)
        for source, epochs, before, count in everything:
            # In order, so that an epoch of the source ends before its next one begins.
            here = np.sort(places[at : at + count])
            found = source.first + epochs.between(before, before + count)
            if self._captions is not None:
                found = self._captions.drawn(
                    found, np.arange(before, before + count) // source.number
                )
            ids[here] = found
            at += count
        return ids
