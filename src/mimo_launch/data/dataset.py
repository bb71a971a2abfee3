"""The interface of a data set, and the contents of its files.

Decides: what a loader may ask about a sample, and the layout of text: padded arrays in which the
label at a position is the token to predict there; which changes of files a resumed run refuses:
other samples, more or fewer, or another order, whatever the names, paths and times of the files.
Relies on: nothing.
Leaves: the samples of each step to `sample_order`, loading them to the loop, the decision to
continue a run to `checkpoint.loading`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mimo_launch.data.random_draws import Split
from mimo_launch.data.record_facts import Int64s, RecordFacts, facts_of
from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.step_data import SampleData

Tokens = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]
# Numbers of labels, or ids of tokens.
TokenColumn = npt.NDArray[np.float64] | npt.NDArray[np.int64]
# Images, log-mel clips, or clips of codec tokens.
Media = Pixels | Codes
Item = TypeVar("Item")


@frozen
class FileContents:
    """The samples of one file that training uses: their number, and a checksum of them in order.

    A sample has changed if its members or its length in tokens have.
    """

    name: str
    samples: int
    checksum: int


Contents = tuple[FileContents, ...]


@frozen
class SourceSamples:
    """The training samples of a source: `number` of them from `first` on, and all their tokens."""

    name: str
    first: int
    number: int
    tokens: int


@frozen
class KeyValues:
    """The keys of a record as short texts: those that are read, and those that are ignored."""

    read: Mapping[str, str]
    ignored: Mapping[str, str]


class BadSample(Exception):
    """A sample whose record or image cannot be read; the message says why.

    A data set raises it for a sample that it finds damaged, and wraps the errors of its decoders
    in it. `describe` never raises it: it reads only the index, which is the same on all ranks.
    """


# What files raise where a record is damaged, or nested too deep to be read.
READ_ERRORS = (OSError, EOFError, ValueError, RecursionError)


def check_ids(ids: Int64s, number: int, split: Split) -> None:
    """Raise IndexError if an id is not one of so many samples."""
    if len(outside := ids[(ids < 0) | (ids >= number)]):
        raise no_sample(outside[0], number, f"({split})")


def no_sample(index: int | np.int64, number: int, of: str) -> IndexError:
    """Return the error that none of so many samples has an index; `of` says which they are."""
    return IndexError(f"sample {index} of {number} {of}")


def chosen(items: Sequence[Item], only: Collection[int] | None) -> Sequence[Item]:
    """Return the items at some places, in order; with None, all of them."""
    return items if only is None else [item for at, item in enumerate(items) if at in only]


class Dataset(Protocol):
    """Samples by index; every answer is a pure function of (spec, split, index).

    An index is in [0, num_samples), or that of a further caption; every method that takes another
    raises IndexError. Methods that read a record raise BadSample; callers treat OSError, EOFError
    and ValueError likewise. Without other answers, samples are generated from the settings, and
    nothing is scored or judged.
    """

    @property
    def answer_ends(self) -> frozenset[int]:
        """The tokens of which any ends an answer; empty if no sample has an answer."""
        return frozenset()

    @property
    def scores(self) -> bool:
        """Whether evaluations decode answers and score them."""
        return False

    @property
    def judges(self) -> bool:
        """Whether the data set can judge generated images; see `count_recognised`."""
        return False

    def num_samples(self, split: Split) -> int:
        """Return the number of samples: one epoch for "train"."""
        ...

    def heldout_sets(self) -> Mapping[str, Sequence[int]]:
        """Return the held-out samples of each set by its name, which is empty for an only set."""
        return {"": range(self.num_samples("heldout"))}

    def sources(self) -> tuple[SourceSamples, ...]:
        """Return the training samples of each source, in order; empty if there is only one."""
        return ()

    def captions(self) -> npt.NDArray[np.integer] | None:
        """Return the number of captions of each training sample; None if each has one text.

        Caption k of sample n, from 0 on, is a sample of its own: `n + k * num_samples("train")`.
        """
        return None

    def contents(self, split: Split) -> Contents:
        """Return the contents of the files; empty if samples are generated from the settings."""
        return ()

    def name(self, split: Split, index: int) -> str:
        """Return a name by which a person finds the sample: shard and key, or its number."""
        self.length(split, index)
        return f"record {index}"

    def keys(self, split: Split, index: int) -> KeyValues | None:
        """Return what the record of a sample holds by key; None if samples are generated."""
        self.length(split, index)
        return None

    def describe(self, split: Split, index: int) -> SampleData:
        """Return the lengths and positions of a sample, cheaply and without reading pixels."""
        ...

    def facts(self, split: Split, ids: Int64s) -> RecordFacts:
        """Return what `describe` says of many samples, as columns."""
        return facts_of([self.describe(split, index) for index in ids.tolist()])

    def length(self, split: Split, index: int) -> int:
        """Return the number of tokens of a sample, `num_tokens` of `describe`."""
        ...

    def lengths(self, split: Split, ids: Int64s) -> Int64s:
        """Return the number of tokens of many samples, for packing."""
        return self.facts(split, ids).tokens

    def num_cut(self, split: Split, index: int) -> int:
        """Return the number of tokens that are left out at the end of a sample."""
        self.length(split, index)
        return 0

    def fetch(self, split: Split, texts: Iterable[int], media: Iterable[int]) -> None:
        """Fetch samples from elsewhere, in parallel: only the text of `texts`, all of `media`.

        It is called before they are read. Its errors end the run; they make no sample bad.
        """
        return

    def text(self, split: Split, index: int) -> tuple[Tokens, Tokens]:
        """Return the tokens and labels of a sample.

        Returns:
            Two int64 arrays [seq]: tokens, PAD after the last one; and labels, already shifted:
            `labels[t]` is the token to predict at position t, IGNORE_LABEL where there is none.
        """
        ...

    def columns(self, split: Split, index: int) -> Mapping[str, TokenColumn]:
        """Return the columns that a user's loss reads, by name, at the places of labels.

        Returns:
            Arrays [seq] or [seq, width]: float64, or int64 of token ids; 0 where there is no label.
        """
        self.length(split, index)
        return {}

    def images(
        self, split: Split, index: int, encoder: str, only: Collection[int] | None = None
    ) -> Sequence[Media]:
        """Return the images or clips of a sample for one encoder, in the order of its spans.

        With `only`, return those of spans at these places alone.

        Returns:
            Arrays in the `input_shape` of the model: float32, about zero mean, [channels,
            height_px, width_px] or [mels, frames]; or int64 [codebooks, frames] of codes, without
            the start and end codes. Empty for a sample without an image.
        """
        ...

    def documents(self, split: Split, index: int) -> Tokens:
        """Return the number of the document at each position, int64 [seq], never decreasing.

        A sample may pack several documents, which do not attend to each other.
        """
        ...

    def count_recognised(
        self, split: Split, index: int, images: Sequence[Media]
    ) -> tuple[int, int]:
        """Return how many images made for a sample show what it asks for, and how many are judged.

        `images` are in the order of its spans, in the form of `images`.
        """
        self.length(split, index)
        return 0, 0

    def pixels(self, generator: str, image: Media) -> npt.NDArray[np.uint8] | None:
        """Return an array of `images` as displayable pixels [channels, h, w]; None for a clip."""
        ...

    def words(self, tokens: Sequence[int]) -> str:
        """Return the tokens of an answer as text."""
        ...

    def answer(self, split: Split, index: int) -> tuple[int, ...]:
        """Return the token ids of the true answer without its end token; empty if there is none."""
        self.length(split, index)
        return ()


_MOST_LISTED = 5


def contents_from(found: Iterable[Any]) -> Contents:
    """Return the contents that were read from JSON. Raises: ValueError, TypeError."""
    rows = [(name, samples, checksum) for name, samples, checksum in found]
    if not all(type(a) is str and type(b) is int and type(c) is int for a, b, c in rows):
        raise ValueError("the contents of data are no names and counts")
    return tuple(FileContents(*row) for row in rows)


def changed_files(old: Contents, new: Contents) -> list[str]:
    """Return the differences between two contents as `file: old -> new`; empty if equal."""
    before, after = ([(each.samples, each.checksum) for each in files] for files in (old, new))
    if before == after:
        return []
    gone, come = Counter(before) - Counter(after), Counter(after) - Counter(before)
    if not gone and not come:
        return [f"order of files: {_names(old)} -> {_names(new)}"]
    lost, found = _chosen(old, gone), _chosen(new, come)
    changes = []
    for name in dict.fromkeys((*lost, *found)):
        left, right = lost.get(name), found.get(name)
        other = "other " * (left == right)
        changes.append(f"{name}: {_samples(left)} -> {_samples(right, other)}")
    more = len(changes) - _MOST_LISTED
    rest = [f"{more} more file{'s' * (more > 1)}: changed"] if more > 0 else []
    total = [f"samples: {sum(e.samples for e in old):,} -> {sum(e.samples for e in new):,}"]
    return [*changes[:_MOST_LISTED], *rest, *(total if len(changes) > 1 else [])]


def _chosen(files: Contents, wanted: Counter[tuple[int, int]]) -> dict[str, int]:
    """Return the number of samples of each `wanted` file, by name, in the order of `files`.

    `wanted` counts files by their samples and checksum; of several equal files, the last count.
    """
    left, chosen = Counter(wanted), Counter[str]()
    for each in reversed(files):
        if left[each.samples, each.checksum] > 0:
            left[each.samples, each.checksum] -= 1
            chosen[each.name] += each.samples
    return dict(reversed(chosen.items()))


def _samples(number: int | None, other: str = "") -> str:
    return "none" if number is None else f"{number:,} {other}sample{'s' * (number != 1)}"


def _names(files: Sequence[FileContents]) -> str:
    more = ", ..." * (len(files) > _MOST_LISTED)
    return ", ".join(each.name for each in files[:_MOST_LISTED]) + more
