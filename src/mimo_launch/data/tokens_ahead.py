"""Text as multi-token prediction reads it: the tokens some positions ahead in the same document.

Decides: that there is padding and no label where the document ends before that position.
Relies on: text and documents as `dataset.Dataset` returns them.
Leaves: cutting it over ranks to `runtime`.
"""

import numpy as np
import numpy.typing as npt

from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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
