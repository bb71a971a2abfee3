"""Packing of records into sequences with little padding; their joined texts; the tokens ahead.

Decides: the heuristic. Each record is one document or several; padding and skipped records belong
to the document before them; a gap at the start is a separate document, to which no token attends.
Multi-token prediction reads padding and no label where a document ends before the token ahead.
Relies on: the StepData for the start of each record.
Leaves: which records are packed together, and the order of packs, to `sample_order`; cutting texts
over ranks to `runtime`.

Packing is best fit decreasing: the longest record first, each into the fullest sequence that has
room. Asymptotically it needs at most 11/9 of the minimum number of sequences (Johnson et al., 1974,
SIAM J. Comput. 3), and nearly the minimum where many records are short. No record is cut.
"""

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_launch.data.record_facts import spread_out
from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD
from mimo_launch.layout.step_data import SampleData

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@frozen(eq=False)
class Packs:
    """Packs of items: pack n has `items[ends[n] : ends[n + 1]]`."""

    items: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return len(self.ends) - 1

    def between(self, first: int, end: int) -> "Packs":
        """Return the packs from one number to another, as far as there are any."""
        first, end, _ = slice(first, end).indices(len(self))
        ends = self.ends[first : end + 1]
        return Packs(self.items[ends[0] : ends[-1]], ends - ends[0])

    def at(self, numbers: Int64s) -> "Packs":
        """Return the packs with these numbers, in this order."""
        begins, ends = self.ends[numbers], self.ends[numbers + 1]
        _, places = spread_out(begins, ends)
        return Packs(self.items[places], np.concatenate([[0], ends - begins]).cumsum())

    def tuples(self) -> tuple[tuple[int, ...], ...]:
        """Return the items of each pack."""
        items = self.items.tolist()
        return tuple([tuple(items[first:end]) for first, end in pairwise(self.ends.tolist())])


def joined_packs(parts: Sequence[Packs]) -> Packs:
    """Return all packs of some, one after another."""
    sizes = [np.diff(each.ends) for each in parts]
    items = np.concatenate([each.items for each in parts])
    return Packs(items, np.concatenate([[0], *sizes]).cumsum())


def best_fit(lengths: Int64s, seq: int) -> Packs:
    """Return packs of at most `seq` tokens, as indices of `lengths`; each index is in one pack.

    A pure function: ties go to lower indices. The indices of a pack increase.

    Raises:
        ValueError: A length exceeds `seq`.
    """
    most = int(lengths.max(initial=0))
    if most > seq:
        raise ValueError(f"a record of {most} tokens does not fit in {seq}")
    longest_first, pack_of = _in_order(-lengths), np.empty_like(lengths)
    pack_of[longest_first] = _packs_in_turn(lengths[longest_first].tolist(), seq)
    ends = np.concatenate([[0], np.cumsum(np.bincount(pack_of))])
    return Packs(_in_order(pack_of), ends)


def _packs_in_turn(lengths: Sequence[int], seq: int) -> list[int]:
    """Return the pack of each length; they never increase."""
    packs, number = list[int](), 0
    # Packs with room for the present length, the fullest last. Those with less room wait, by their
    # room, until lengths are as short: then they are fuller than all others that have room.
    able: list[tuple[int, int]] = []
    waiting: dict[int, list[int]] = {}
    rooms = [-1]  # The sorted keys of `waiting`, after one that no length reaches.
    room, pack = -1, 0  # The fullest pack with room for the length before, if any.
    for length in lengths:
        if rooms[-1] >= length:
            if room >= 0:
                able.append((room, pack))
            while rooms[-1] >= length:
                room = rooms.pop()
                able += [(room, pack) for pack in waiting.pop(room)]
            room, pack = able.pop()
        elif room < 0 and able:
            room, pack = able.pop()
        elif room < 0:
            room, pack = seq, number
            number += 1
        packs.append(pack)
        room -= length
        if room < length:
            if room in waiting:
                waiting[room].append(pack)
            elif room:
                waiting[room] = [pack]
                insort(rooms, room)
            room = -1
    return packs


def _in_order(values: Int64s) -> Int64s:
    """Return the places of sorted values; of equal values, the lower place first."""
    # To sort numbers takes a fifth of the time of a stable `argsort`.
    number = len(values)
    found: Int64s = np.sort(values * number + np.arange(number)) % max(1, number)
    return found


def joined_texts(
    records: Iterable[tuple[SampleData, tuple[Int64s, Int64s]]], seq: int
) -> tuple[Int64s, Int64s]:
    """Return tokens and labels, int64 [seq] each, of records with tokens and labels [seq] each."""
    tokens = np.full(seq, PAD, dtype=np.int64)
    labels = np.full(seq, IGNORE_LABEL, dtype=np.int64)
    for record, (own_tokens, own_labels) in records:
        here = slice(record.first, record.first + record.num_tokens)
        # The last token of a record has no label: no record predicts what follows it.
        tokens[here] = own_tokens[: record.num_tokens]
        labels[here] = own_labels[: record.num_tokens]
    return tokens, labels


def joined_columns(
    records: Iterable[tuple[SampleData, Mapping[str, npt.NDArray[Any]]]],
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a pack, [seq] or [seq, width] each, from those of its records."""
    found: dict[str, npt.NDArray[Any]] = {}
    for record, columns in records:
        here = slice(record.first, record.first + record.num_tokens)
        for name, values in columns.items():
            found.setdefault(name, np.zeros_like(values))[here] = values[: record.num_tokens]
    return found


def joined_documents(records: Iterable[tuple[SampleData, Int64s]], seq: int) -> Int64s:
    """Return the document of each position, int64 [seq], of records with documents [seq] each."""
    documents = np.zeros(seq, dtype=np.int64)
    num_documents = 0
    for record, own in records:
        if record.first and not num_documents:
            num_documents = 1
        documents[record.first :] = num_documents + own[: seq - record.first]
        num_documents = int(documents[record.first + record.num_tokens - 1]) + 1
    return documents


def has_ahead(documents: Int64s, depth: int) -> Bools:
    """Return which positions have a token `depth` ahead in their document, [..., seq]."""
    found = np.zeros(documents.shape, dtype=np.bool_)
    found[..., :-depth] = documents[..., depth:] == documents[..., :-depth]
    return found


def ahead(values: npt.NDArray[np.int64], has: Bools, depth: int, other: int) -> Int64s:
    """Return the value `depth` ahead of each position, `other` where there is none, [..., seq]."""
    return np.where(has, np.roll(values, -depth, axis=-1), other)


def tokens_ahead(tokens: Int64s, has: Bools, depth: int) -> Int64s:
    """Return the token `depth` ahead of each position."""
    return ahead(tokens, has, depth, PAD)


def labels_ahead(labels: Int64s, has: Bools, depth: int) -> Int64s:
    """Return the label `depth` ahead of each position: the token after the one there."""
    return ahead(labels, has, depth, IGNORE_LABEL)


def count_labels(labels: Int64s, documents: Int64s, depths: int) -> tuple[int, ...]:
    """Return the number of labels of each depth, starting at 1."""
    found = (
        labels_ahead(labels, has_ahead(documents, depth), depth) for depth in range(1, depths + 1)
    )
    return tuple(int((each != IGNORE_LABEL).sum()) for each in found)
