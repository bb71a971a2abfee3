"""Texts and documents of records that share a sequence, as those of one sample.

Decides: that each record is a document of its own, or several, and that padding and records left
out belong to the document before them; a gap at the very front is a document of its own, which
nothing attends to.
Relies on: the StepData for where a record begins.
Leaves: which records share a sequence to `packing`.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD
from mimo_launch.layout.step_data import SampleData

Int64s = npt.NDArray[np.int64]


def joined_texts(
    records: Iterable[tuple[SampleData, tuple[Int64s, Int64s]]], seq: int
) -> tuple[Int64s, Int64s]:
    """Return tokens and labels, int64 [seq] each, of records with tokens and labels [seq] each."""
    tokens = np.full(seq, PAD, dtype=np.int64)
    labels = np.full(seq, IGNORE_LABEL, dtype=np.int64)
    for record, (own_tokens, own_labels) in records:
        here = slice(record.first, record.first + record.num_tokens)
        # The label at its last token is none: no record predicts what is behind its end.
        tokens[here] = own_tokens[: record.num_tokens]
        labels[here] = own_labels[: record.num_tokens]
    return tokens, labels


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
