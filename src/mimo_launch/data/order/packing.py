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

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD
from mimo_launch.layout.step_data import SampleData

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def best_fit(lengths: Sequence[int], seq: int) -> list[list[int]]:
    """Return packs of at most `seq` tokens, as indices of `lengths`; each index is in one pack.

    A pure function: ties go to lower indices. The indices of a pack increase.

    Raises:
        ValueError: A length exceeds `seq`.
    """
    packs: list[list[int]] = []
    # Packs by the room that is left in them, and the sorted values of that room.
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []
    # Equal lengths stay in order, also in reverse.
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        length = lengths[index]
        if length > seq:
            raise ValueError(f"a record of {length} tokens does not fit in {seq}")
        at = bisect_left(rooms, length)
        if at == len(rooms):
            pack, room = len(packs), seq
            packs.append([])
        else:
            room = rooms[at]
            pack = by_room[room].pop()
            if not by_room[room]:
                del by_room[room], rooms[at]
        packs[pack].append(index)
        left = room - length
        if left:
            if left not in by_room:
                by_room[left] = []
                insort(rooms, left)
            by_room[left].append(pack)
    return [sorted(pack) for pack in packs]


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
