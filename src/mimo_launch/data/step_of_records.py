"""A step as the records of its samples: facts about all of them as columns, descriptions on demand.

Decides: that only the samples that are asked for are described one by one.
Relies on: `record_facts` for the columns of records.
Leaves: which records a step has to `data.order`.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import repeat
from typing import Protocol, overload

import numpy as np

from mimo_launch.data.record_facts import NO_SOURCE, Int64s, RecordFacts, span_from
from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.step_data import (
    NO_RECORD,
    ImageSpan,
    SampleData,
    StepData,
    packed,
    without_records,
)
from mimo_launch.spec.base import LANGUAGE


class KnownRecords(Protocol):
    """Records by their ids."""

    def facts(self, ids: Int64s) -> RecordFacts:
        """Return facts about these records. Raises: IndexError."""

    def describe(self, index: int) -> SampleData:
        """Return a record as a run describes it."""


@frozen(eq=False, slots=False)
class DescribedSamples(Sequence[SampleData]):
    """Samples, each described once, when it is asked for.

    Sample n has the records `ids[ends[n] : ends[n + 1]]`. `known` has those of all `numbers`.
    """

    records: KnownRecords
    ids: Int64s
    ends: Int64s
    numbers: range
    known: dict[int, SampleData] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> SampleData: ...
    @overload
    def __getitem__(self, index: slice) -> "DescribedSamples": ...
    def __getitem__(self, index: int | slice) -> "SampleData | DescribedSamples":
        number = self.numbers[index]
        if isinstance(number, range):
            return replace(self, numbers=number)
        if number not in self.known:
            here = self.ids[self.ends[number] : self.ends[number + 1]].tolist()
            self.known[number] = packed([self.records.describe(each) for each in here])
        return self.known[number]


class _ByNumber(Sequence[SampleData]):
    """Samples by their numbers from 0; a part of them is a list."""

    @overload
    def __getitem__(self, index: int) -> SampleData: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SampleData]: ...
    def __getitem__(self, index: int | slice) -> SampleData | Sequence[SampleData]:
        number = range(len(self))[index]
        if isinstance(number, range):
            return [self._at(each) for each in number]
        return self._at(number)

    @abstractmethod
    def _at(self, number: int) -> SampleData:
        """Return one sample."""


@frozen(eq=False, slots=False)
class _Outlines(_ByNumber):
    """Samples as columns have them: lengths of records, sizes of images, and no places.

    Sample n has the records `ends[n]` to `ends[n + 1]`.
    """

    facts: RecordFacts
    ends: Int64s
    known: dict[int, SampleData] = field(default_factory=dict, init=False)
    spans: dict[tuple[int, ...], ImageSpan] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def _at(self, number: int) -> SampleData:
        if number not in self.known:
            self.known[number] = self._made(number)
        return self.known[number]

    @cached_property
    def _bounds(self) -> tuple[list[int], dict[str, list[int]]]:
        """Where the records of each sample begin, and its images of each module."""
        images = self.facts.images.items()
        begins = {name: np.searchsorted(each.record, self.ends).tolist() for name, each in images}
        return self.ends.tolist(), begins

    def _made(self, number: int) -> SampleData:
        ends, begins = self._bounds
        here = slice(*ends[number : number + 2])
        tokens, labels = (of[here].tolist() for of in (self.facts.tokens, self.facts.labels))
        spans = {
            name: tuple(map(self._span, map(tuple, images.shapes[first:end].tolist())))
            for name, images in self.facts.images.items()
            for first, end in (begins[name][number : number + 2],)
        }
        parts = None
        if len(tokens) != 1:
            parts = tuple(map(SampleData, repeat(NO_RECORD), tokens, labels))
        return SampleData(NO_RECORD, sum(tokens), sum(labels), spans, parts=parts)

    def _span(self, shape: tuple[int, ...]) -> ImageSpan:
        if shape not in self.spans:
            self.spans[shape] = span_from(*shape)
        return self.spans[shape]


@frozen(eq=False, slots=False)
class _Damaged(_ByNumber):
    """The same samples, except for some, by their number."""

    samples: Sequence[SampleData]
    others: Mapping[int, SampleData]

    def __len__(self) -> int:
        return len(self.samples)

    def _at(self, number: int) -> SampleData:
        return self.others.get(number) or self.samples[number]


@frozen(kw_only=True, eq=False, slots=False)
class StepOfRecords(StepData):
    """A step by the ids of its records; `facts` leaves out unreadable ones, `indexed_facts` none.

    Sample n has the records `ends[n]` to `ends[n + 1]`.
    """

    indexed_facts: RecordFacts
    facts: RecordFacts
    ends: Int64s
    _rows: dict[str, Int64s] = field(default_factory=dict, init=False)
    _media: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict, init=False)

    def rows(self, module: str, samples: Sequence[int]) -> list[int]:
        """Return the number of rows that a module makes of each of these samples, as indexed."""
        found = self.rows_of_samples(module)[np.asarray(samples, dtype=np.int64)]
        rows: list[int] = found.tolist()
        return rows

    def rows_of_samples(self, module: str) -> Int64s:
        """Return the number of rows that a module makes of each sample, [samples], as indexed."""
        if module not in self._rows:
            self._rows[module] = self._by_sample(self.indexed_facts.rows(module))
        return self._rows[module]

    def rows_of_media(self, module: str, sample: int) -> list[int]:
        """Return the rows of each medium of a sample, the most first, as indexed."""
        if module not in self._media:
            self._media[module] = self._rows_of_media(module)
        begins, rows = self._media[module]
        return sorted(rows[begins[sample] : begins[sample + 1]], reverse=True)

    def _rows_of_media(self, module: str) -> tuple[list[int], list[int]]:
        """Return where the media of each sample begin, and the rows of all media."""
        images = self.indexed_facts.images.get(module)
        if images is None or not len(images.record):
            return [0] * len(self.ends), []
        firsts = np.flatnonzero(~images.joined)
        rows = np.add.reduceat(images.rows, firsts)
        return np.searchsorted(images.record[firsts], self.ends).tolist(), rows.tolist()

    def numbers(self, sample: int) -> range:
        """Return the numbers of the records of a sample."""
        return range(*self.ends[sample : sample + 2].tolist())

    def sample_of(self, number: int) -> int:
        """Return the sample that holds the record of a number."""
        return int(np.searchsorted(self.ends, number, side="right")) - 1

    @property
    def num_records(self) -> int:
        """Records of the data set in all samples."""
        return len(self.facts.tokens)

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all samples."""
        return int(self.facts.tokens.sum())

    @cached_property
    def num_labels(self) -> int:
        """Number of valid labels of the step."""
        return int(self.facts.labels.sum())

    @property
    def most_labels(self) -> int:
        """The most labels of a sample."""
        return int(self._by_sample(self.facts.labels).max())

    @cached_property
    def labels_by_source(self) -> dict[str, float]:
        """Number of valid labels, or what is counted, of each source with a sample in the step."""
        facts = self.facts
        if facts.source is None:
            return {}
        is_there = facts.source != NO_SOURCE
        here, first = np.unique(facts.source[is_there], return_index=True)
        terms = facts.terms[is_there], facts.source[is_there]
        # In the order in which they appear.
        return {
            facts.source_names[number]: terms[0][terms[1] == number].sum().item()
            for number in here[np.argsort(first)].tolist()
        }

    def num_terms(self, module: str, depth: int = 0) -> float:
        """Return N, the divisor of a module's loss; see `StepData`."""
        # Every microbatch asks.
        if depth:
            return sum(self._labels_ahead[depth - 1 : depth])
        if module == LANGUAGE:
            return self._terms
        images = self.facts.images.get(module)
        return 0 if images is None else int(images.rows.sum())

    @cached_property
    def _labels_ahead(self) -> list[int]:
        """Labels of each depth of multi-token prediction."""
        sums: list[int] = self.facts.ahead().sum(axis=1).tolist()
        return sums

    @cached_property
    def _terms(self) -> float:
        terms: float = self.facts.terms.sum().item()
        return terms

    def num_images(self, module: str) -> int:
        """Return the number of images of a module."""
        images = self.facts.images.get(module)
        return 0 if images is None else len(images.record)

    def most_rows(self, module: str) -> int:
        """Return the most rows of an image of a module."""
        images = self.facts.images.get(module)
        return 0 if images is None else int(images.rows.max(initial=0))

    def span_lengths(self, seq: int) -> Counter[int]:
        """Return how many spans of attention in sequences of `seq` tokens have each length."""
        lengths, ends = self.facts.tokens.copy(), self.ends
        has_records = np.diff(ends) > 0
        last = ends[1:][has_records] - 1
        lengths[last] += np.maximum(0, seq - self._by_sample(self.facts.tokens)[has_records])
        values, counts = np.unique(lengths, return_counts=True)
        found = Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        found[seq] += int((~has_records).sum())
        return +found

    @cached_property
    def outline(self) -> StepData:
        """The same step, of which no record is described."""
        return replace(self, samples=_Outlines(self.facts, self.ends), before_damage=None)

    def texts(self, samples: Sequence[int]) -> tuple[int, int]:
        """Return how many records some samples have, and tokens beside media."""
        records, tokens = self._texts
        return int(records[samples].sum()), int(tokens[samples].sum())

    @cached_property
    def _texts(self) -> tuple[Int64s, Int64s]:
        tokens = self.facts.tokens.copy()
        for images in self.facts.images.values():
            np.subtract.at(tokens, images.record, images.num_positions)
        return np.diff(self.ends), self._by_sample(tokens)

    def alike(self, module: str, reads: Sequence[str]) -> list[tuple[SampleData, int]]:
        """Return samples that stand for all images of a module, and how many each stands for."""
        return self.facts.alike(module, reads)

    def without(self, bad: Collection[int]) -> "StepOfRecords":
        """Return the step without some of its records, which cannot be read."""
        of_sample: dict[int, list[int]] = {}
        for number in bad:
            sample = self.sample_of(number)
            of_sample.setdefault(sample, []).append(number - self.numbers(sample).start)
        others = {n: without_records(self.indexed[n], gone) for n, gone in of_sample.items()}
        samples = _Damaged(self.indexed, others)
        facts = self.indexed_facts.without([*bad])
        return replace(self, samples=samples, before_damage=self.indexed, facts=facts)

    def _by_sample(self, of_records: Int64s) -> Int64s:
        sums = np.concatenate([[0], np.cumsum(of_records)])
        found: Int64s = np.diff(sums[self.ends])
        return found


def step_of(
    records: KnownRecords, step: int, ids: Int64s, ends: Int64s, *, heldout: bool = False
) -> StepOfRecords:
    """Return a step of which sample n has the records `ids[ends[n] : ends[n + 1]]`.

    Raises: IndexError if there is no such record.
    """
    facts = records.facts(ids)
    return StepOfRecords(
        step=step,
        samples=DescribedSamples(records, ids, ends, range(len(ends) - 1)),
        heldout=heldout,
        indexed_facts=facts,
        facts=facts,
        ends=ends,
    )
