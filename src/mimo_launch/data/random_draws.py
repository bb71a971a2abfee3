"""Random words that depend only on (seed, split, index); the noise of generators.

Decides: how a sample's index becomes random numbers: Philox is a counter generator, so the words of
sample i are read at counter i, whichever rank asks and whatever was asked before. The noise and the
time of an image depend on (seed, step, sample, image): every layout draws the same.
Relies on: the raw stream of numpy's Philox, which numpy guarantees never to change. It does not
guarantee this of its distributions, so integers are made here; noise and times do use them.
Leaves: the meaning of the words to the data sets; making noise ahead of the step to `train.loader`,
mixing it with images to `models.noise`.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mimo_launch.layout.step_data import SampleData, StepData

Split = Literal["train", "heldout"]
Words = npt.NDArray[np.uint64]

_WORDS_PER_COUNTER = 4
_BLOCK = 1024
# A block of rows has about 100 kB; the cap bounds memory for an epoch of any length.
_MAX_BLOCKS = 512
# To make a block takes as long as so many rows alone.
_FEW = 40
# From so many words on, another way to sort them pays for its checks.
_MANY = 1 << 12
_U32 = np.uint64(32)
_U64_MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """A separate generator for each use of random words; a changed number changes the samples."""

    ORDER = 0
    HELDOUT_IMAGES = 1
    DIGITS = 2
    SYNTHETIC_PLAN = 3
    SYNTHETIC_CONTENT = 4
    NOISE = 5
    MIXTURE = 6
    SOURCE = 7
    CAPTION = 8


def split_key(seed: int, split: Split, purpose: Purpose) -> tuple[int, int]:
    """Return the key of the generator of one split, for one purpose.

    The held-out split ignores the seed, so that runs with different seeds are measured on the same
    samples.

    Args:
        seed: `train.seed`; taken modulo 2^64.
        split: The split of the samples.
        purpose: The use of the words.

    Returns:
        The two 64-bit words of a Philox key.
    """
    if split == "train":
        return seed & _U64_MASK, 2 * purpose
    return 0, 2 * purpose + 1


def generator(key: tuple[int, int], index: int = 0, stream: int = 0) -> np.random.Philox:
    """Return the bit generator of one sample: 2^64 blocks of words that no other sample uses.

    Args:
        key: From `split_key`.
        index: Index of the sample.
        stream: Separates several uses by one sample.
    """
    counter = np.array([0, index, stream, 0], dtype=np.uint64)
    return np.random.Philox(key=np.array(key, dtype=np.uint64), counter=counter)


def pick(word: int, bound: int) -> int:
    """Map one random 64-bit word to an integer in [0, bound), `bound` at most 2^32."""
    return ((word >> 32) * bound) >> 32


def below(words: Words, bound: int | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Map random words of any shape as `pick` maps one."""
    return (((words >> _U32) * np.asarray(bound, dtype=np.uint64)) >> _U32).astype(np.int64)


def is_below(words: Words, limit: int) -> npt.NDArray[np.bool_]:
    """Return which random words are below a `threshold`, whose last 32 bits are 0."""
    found: npt.NDArray[np.bool_] = words >> _U32 < np.uint64(limit >> 32)
    return found


def threshold(probability: float) -> int:
    """Return a bound that a random 64-bit word is below with `probability`; exact for 0 and 1."""
    return round(probability * (1 << 32)) << 32


def order_of(words: Words) -> npt.NDArray[np.int64]:
    """Return the permutation that sorts random words [n]: a uniformly random order of n items."""
    if len(words) >= _MANY:
        # To sort numbers takes a fifth of the time of `argsort`. Each word has its place as its low
        # bits; they decide nothing unless two words are equal in all other bits.
        bits = np.uint64(len(words).bit_length())
        low = (np.uint64(1) << bits) - np.uint64(1)
        placed = words & ~low
        placed |= np.arange(len(words), dtype=np.uint64)
        placed.sort()
        high = placed >> bits
        if not (high[1:] == high[:-1]).any():
            placed &= low
            return placed.view(np.int64)
    return np.argsort(words, kind="stable").astype(np.int64)


class Draws:
    """A table of random words [index, width], made block by block as it is read.

    Reading a row takes about a microsecond once its block exists, against about 20 with a generator
    per sample. Every rank reads the `rows` of all samples of a step, its own or not.

    If there are more blocks than are kept, a block with few of the rows that are read is not made.
    `number` is that of all rows, if they are read in random order.
    """

    def __init__(self, key: tuple[int, int], width: int, number: int = 0) -> None:
        self._key, self._is_long = np.array(key, dtype=np.uint64), number > _MAX_BLOCKS * _BLOCK
        self._counters_per_row = -(-width // _WORDS_PER_COUNTER)
        self._width = width
        self._block = lru_cache(maxsize=_MAX_BLOCKS)(self._make_block)

    def _make_block(self, block: int) -> Words:
        counter = np.array([block * _BLOCK * self._counters_per_row, 0, 0, 0], dtype=np.uint64)
        words_per_row = self._counters_per_row * _WORDS_PER_COUNTER
        words = np.random.Philox(key=self._key, counter=counter).random_raw(_BLOCK * words_per_row)
        return np.asarray(words, dtype=np.uint64).reshape(_BLOCK, words_per_row)[:, : self._width]

    def rows(self, ids: npt.NDArray[np.int64]) -> Words:
        """Return the words of many samples, [samples, width]."""
        found = np.empty((len(ids), self._width), dtype=np.uint64)
        # Block by block: a step with the samples of many blocks would make them again.
        order = np.argsort(ids, kind="stable")
        blocks, rows = np.divmod(ids[order], _BLOCK)
        starts = np.flatnonzero(np.diff(blocks, prepend=-1))
        numbers = np.diff(starts, append=len(ids))
        is_few = self._is_long & (numbers < _FEW)
        whole = zip(starts[~is_few].tolist(), numbers[~is_few].tolist(), strict=True)
        for start, number in whole:
            here = slice(start, start + number)
            found[order[here]] = self._block(int(blocks[start]))[rows[here]]
        if is_few.any():
            alone = order[np.repeat(is_few, numbers)]
            found[alone] = self._alone(ids[alone])
        return found

    def _alone(self, ids: npt.NDArray[np.int64]) -> Words:
        """Return the words of some samples, made one by one."""
        found = np.empty((len(ids), self._width), dtype=np.uint64)
        # To set the state of a generator takes a sixth of the time of making one.
        bits = np.random.Philox(key=self._key)
        state: Any = bits.state
        for place, index in enumerate(ids.tolist()):
            state["state"]["counter"][0] = index * self._counters_per_row
            bits.state = state
            found[place] = bits.random_raw(self._width)
        return found

    def row(self, index: int) -> list[int]:
        """Return the `width` words of one sample."""
        block, row = divmod(index, _BLOCK)
        found = self._alone(np.array([index]))[0] if self._is_long else self._block(block)[row]
        words: list[int] = found.tolist()
        return words


class Noise(NamedTuple):
    """Standard normal noise [patches, numbers of a patch], and a time between 0 and 1."""

    values: npt.NDArray[np.float32]
    time: float


def noises_of(
    seed: int, data: StepData, record: SampleData, module: str, numbers: int
) -> list[Noise]:
    """Return the noise of each image that a generator makes for a record."""
    return [
        noise_of(seed, data.step, record.id, place, (span.rows, numbers), heldout=data.heldout)
        for place, span in enumerate(record.spans.get(module, ()))
    ]


def noise_of(
    seed: int, step: int, sample: int, image: int, shape: tuple[int, int], *, heldout: bool
) -> Noise:
    """Return the noise of an image; `step` counts from 0. Held-out samples get the same each time.

    Times are uniform, as in rectified flow (arXiv:2209.03003).
    """
    key = split_key(seed, "heldout" if heldout else "train", Purpose.NOISE)
    # No sequence holds 2^16 images.
    stream = (0 if heldout else step) * 2**16 + image
    draws = np.random.Generator(generator(key, sample, stream))
    return Noise(draws.standard_normal(shape, dtype=np.float32), float(draws.random()))
