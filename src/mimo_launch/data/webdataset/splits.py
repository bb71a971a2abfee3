"""One split of shards, open: its index, its shards, and which samples of the index it has.

Decides: which samples are too long, what the user is told of what was left out, and that whatever
cannot be read is named by shard and key.
Relies on: `index_columns` and `tar_files`.
Leaves: contents of samples to `samples`.
"""

from collections.abc import Callable
from functools import cached_property
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.random_draws import Split
from mimo_launch.data.webdataset.index import Say, open_index, split_files
from mimo_launch.data.webdataset.index_columns import BAD
from mimo_launch.data.webdataset.indexer import Looker
from mimo_launch.data.webdataset.tar_files import Place, ShardReader
from mimo_launch.layout.step_data import ImageSpan

_MOST_LISTED = 5
T = TypeVar("T")


class NotTrainable(ValueError):
    """Shards hold no sample, or too many bad ones, or one that is too long and must not be."""


class OpenSplit:
    """The samples of one split. `row` is a sample's place in the index, which has too long ones."""

    def __init__(self, looker: Looker, split: Split, say: Say) -> None:
        """Open the index, or make it; `say` hears of the making.

        Raises: NotTrainable, OSError, ValueError.
        """
        self.split: Split = split
        self.index = open_index(looker, split, say)
        self._data, self._seq = looker.data, looker.spec.batch.seq
        self._reader = ShardReader(split_files(self._data, split))
        too_long = np.flatnonzero(self.index.columns["tokens"] > self._seq)
        self.num_too_long = len(too_long)
        self._rows: npt.NDArray[np.int64] | None = None
        if self.num_too_long and self._data.too_long == "drop":
            self._rows = np.flatnonzero(self.index.columns["tokens"] <= self._seq)
        self._check(too_long)

    def _check(self, too_long: npt.NDArray[np.int64]) -> None:
        """Raise NotTrainable if these samples must not be trained on."""
        index, data = self.index, self._data
        if index.num_bad > data.max_bad_samples:
            raise NotTrainable(
                f"{index.num_bad} records of the shards ({self.split}) are bad, "
                f"`data.max_bad_samples` allows {data.max_bad_samples}; {index.folder / BAD} lists "
                f"them, the first:\n{self.first_bad()}"
            )
        if self.num_too_long and data.too_long == "error":
            row = int(too_long[0])
            raise NotTrainable(
                f"{self.num_too_long} samples ({self.split}) are longer than `batch.seq` "
                f"{self._seq}; the first is {self.name(row)} with {index.columns['tokens'][row]} "
                f"tokens"
            )
        if self.num_samples == 0:
            raise NotTrainable(
                f"the shards ({self.split}) hold no sample to use: {index.num_bad} are bad, "
                f"{self.num_too_long} longer than `batch.seq` {self._seq}\n{self.first_bad()}"
            )

    def first_bad(self) -> str:
        """Return the first bad records, a line each."""
        first = islice(self.index.bad(), _MOST_LISTED)
        return "\n".join(f"{each['shard']} {each['key']}: {each['why']}" for each in first)

    def summary(self) -> str:
        """Return in one line what there is and what was left out."""
        words = [f"{self.num_samples:,} samples ({self.split})"]
        if self.num_too_long:
            cut = "left out" if self._data.too_long == "drop" else "cut"
            words.append(f"{self.num_too_long:,} longer than {self._seq} tokens, {cut}")
        if self.index.num_bad:
            words.append(f"{self.index.num_bad:,} bad, see {self.index.folder / BAD}")
        return "; ".join(words)

    @property
    def num_samples(self) -> int:
        """Samples to train on, or to evaluate with."""
        return self.index.num_samples if self._rows is None else len(self._rows)

    @cached_property
    def lengths(self) -> npt.NDArray[np.unsignedinteger]:
        """Tokens of every sample, rows included; of those that are cut, of what is left."""
        lengths = self.index.columns["tokens"]
        if self._rows is not None:
            return lengths[self._rows]
        if self.num_too_long:
            lengths = lengths.copy()
            for row in np.flatnonzero(lengths > self._seq).tolist():
                lengths[row] = self.end(row)
        return lengths

    def row(self, sample: int) -> int:
        """Return the place of a sample in the index. Raises: IndexError."""
        if not 0 <= sample < self.num_samples:
            raise IndexError(f"sample {sample} of {self.num_samples} ({self.split})")
        return sample if self._rows is None else int(self._rows[sample])

    def end(self, row: int) -> int:
        """Return how many tokens of a sample are used: all, or what fits without a cut image."""
        if (length := int(self.index.columns["tokens"][row])) <= self._seq:
            return length
        for _, _, span in self.spans(row):
            if span.position < self._seq < span.position + span.rows:
                return span.position
        return self._seq

    def num_labels(self, row: int) -> int:
        """Return how many of the tokens that are used are learnt."""
        columns = self.index.columns
        if columns["tokens"][row] <= self._seq:
            return int(columns["labels"][row])
        runs, end = self.index.range("run", row), self.end(row)
        first, last = (columns[name][runs].astype(np.int64) for name in ("run_first", "run_last"))
        return int((np.minimum(last, end) - np.minimum(first, end)).sum())

    def spans(self, row: int) -> tuple[tuple[int, int, ImageSpan], ...]:
        """Return encoder, number of the image or clip, and rows, in the order of the sample."""
        columns, here = self.index.columns, self.index.range("span", row)
        names = ("encoder", "member", "position", "height", "width")
        values = zip(*(columns[f"span_{name}"][here].tolist() for name in names), strict=True)
        return tuple((encoder, member, ImageSpan(*size)) for encoder, member, *size in values)

    def members(self, row: int) -> dict[str, Place]:
        """Return the members of a sample by suffix, images and clips in order."""
        columns, here = self.index.columns, self.index.range("member", row)
        names = ("suffix", "offset", "size")
        values = zip(*(columns[f"member_{name}"][here].tolist() for name in names), strict=True)
        suffixes = self.index.meta["suffixes"]
        return {suffixes[suffix]: Place(offset, size) for suffix, offset, size in values}

    def read(self, row: int, place: Place) -> bytes:
        """Return the bytes of a member of a sample. Raises: OSError, EOFError."""
        return self._reader.read(int(self.index.columns["shard"][row]), place)

    def name(self, row: int) -> str:
        """Return shard and key of a sample."""
        shard = self._reader.shards[int(self.index.columns["shard"][row])]
        return f"{shard.name} {self.index.key(row)}"

    def named(self, row: int, read: Callable[[], T]) -> T:
        """Return what `read` returns. Raises: BadSample with shard and key for what is damaged."""
        try:
            return read()
        except BadSample as error:
            raise BadSample(f"{self.name(row)}: {error}") from error
        except (OSError, EOFError, ValueError) as error:
            raise BadSample(f"{self.name(row)}: {type(error).__name__}: {error}") from error
