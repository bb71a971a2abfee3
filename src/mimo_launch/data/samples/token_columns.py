"""The columns of a sample that a user's loss reads: numbers, or ids, for each learnt token.

Decides: which columns a sample must have, and what their values may be.
Relies on: the spec of the loss; numpy's files.
Leaves: which tokens are learnt to `sample_encoder`, the loss to `models.custom_loss`.
"""

import io
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import BadSample, TokenColumn
from mimo_launch.data.sources.media_suffixes import COLUMN
from mimo_launch.kinds.vocabulary import vocab_size
from mimo_launch.spec.spec import Spec


class TokenColumns:
    """The columns that the loss of a spec reads; none if it has no loss of its own."""

    def __init__(self, spec: Spec) -> None:
        loss = spec.language.loss
        self._widths = {} if loss is None else loss.columns
        self._of_tokens = () if loss is None else loss.token_columns
        self.counts = None if loss is None else loss.counts
        self._vocab = vocab_size(spec) if self._of_tokens else 0

    @property
    def asked(self) -> list[list[object]]:
        """Everything that decides which samples have good columns."""
        return [
            [name, width, self._vocab * (name in self._of_tokens), name == self.counts]
            for name, width in self._widths.items()
        ]

    @property
    def suffixes(self) -> dict[str, str]:
        """The suffix of the member of each column, by name."""
        return {name: f"{COLUMN}{name}.npy" for name in self._widths}

    def read(
        self, present: Collection[str], number: int, read: Callable[[str], bytes]
    ) -> dict[str, TokenColumn]:
        """Return the values for each learnt token, [number] or [number, width], by column.

        `present` are the suffixes of the sample; `read` returns a member. Raises: BadSample.
        """
        found = {}
        for name, suffix in self.suffixes.items():
            if suffix not in present:
                raise BadSample(f"it has no column `{name}` of numbers, which the loss reads")
            found[name] = self._checked(name, number, read(suffix))
        return found

    def counted(self, columns: dict[str, TokenColumn]) -> float:
        """Return the sum of the column that the loss counts, 0 if it counts labels."""
        return 0.0 if self.counts is None else float(columns[self.counts].sum())

    def _checked(self, name: str, number: int, data: bytes) -> TokenColumn:
        try:
            values = np.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise BadSample(f"its column `{name}` is no numpy file: {error}") from error
        wide = (self._widths[name],) if self._widths[name] > 1 else ()
        if values.shape == (number, 1) and not wide:
            values = values[:, 0]
        if values.shape not in ((), (number, *wide)):
            raise BadSample(
                f"its column `{name}` has the shape {list(values.shape)}, and its {number} learnt "
                f"tokens need {[number, *wide]}, or a single value"
            )
        if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
            raise BadSample(f"its column `{name}` has values that are no finite numbers")
        if name == self.counts and (values < 0).any():
            raise BadSample(f"its column `{name}` has values below 0, and the loss counts it")
        if name in self._of_tokens:
            self._refuse_other_words(name, values)
        kind = np.int64 if name in self._of_tokens else np.float64
        made: Any = np.broadcast_to(values, (number, *wide)).astype(kind)
        column: TokenColumn = made
        return column

    def _refuse_other_words(self, name: str, values: npt.NDArray[np.generic]) -> None:
        ids = values.astype(np.int64)
        if (ids != values).any() or (ids < 0).any() or (ids >= self._vocab).any():
            raise BadSample(
                f"its column `{name}` has a value that is no token: they are 0 to {self._vocab - 1}"
            )


def at_labels(
    columns: dict[str, TokenColumn], places: npt.NDArray[np.int64], seq: int
) -> dict[str, TokenColumn]:
    """Return columns at the places of labels, [seq] or [seq, width], 0 elsewhere."""
    found: dict[str, TokenColumn] = {}
    for name, values in columns.items():
        made: Any = np.zeros((seq, *values.shape[1:]), values.dtype)
        made[places] = values[: len(places)]
        found[name] = made
    return found
