"""Slices of matrices of integers in a Hugging Face folder: GPTQ, AWQ, compressed-tensors.

Decides: which words hold the numbers of a slice, and that they are multiplied by scales in fp32.
Relies on: `hugging_face.integers` for the forms.
Leaves: opening files to `folder_tensors`.
"""

from typing import Any

import torch
from torch import Tensor

from mimo_launch.hugging_face.integers import AWQ, CT4, CT8, GPTQ, IN_WORD, IntegerHeader

# The place in a word of each of eight outputs of AWQ.
_PLACES_OF_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)


class Integers:
    """A matrix [outputs, inputs] given by sliceable tensors; its slices are float32."""

    def __init__(self, header: IntegerHeader, parts: dict[str, Any]) -> None:
        self.header, self._parts = header, parts

    @property
    def block(self) -> int:
        """Inputs that share a scale; 0 if they are not adjacent."""
        order = self.header.order
        if order is None:
            return self.header.group
        groups = self._parts["order"][:]
        plain = torch.arange(len(groups)) // self.header.group
        return self.header.group if torch.equal(groups.long(), plain) else 0

    @property
    def scales(self) -> "Scales":
        """The scale of each value, to slice like the values."""
        return Scales(self)

    def __getitem__(self, at: slice | tuple[slice, ...]) -> Tensor:
        """Return a slice; dimensions that are not given are read completely."""
        rows, columns = self.spans(at)
        numbers = self._numbers(rows, columns)
        if "zeros" in self._parts:
            numbers = numbers - self._per_group("zeros", rows, columns)
        return numbers.float() * self.scales_of(rows, columns)

    def spans(self, at: slice | tuple[slice, ...]) -> tuple[range, range]:
        """Return the rows and columns of a slice."""
        given = (*(at if isinstance(at, tuple) else (at,)), slice(None), slice(None))
        rows, columns = (range(n)[each] for n, each in zip(self.header.shape, given, strict=False))
        return rows, columns

    def scales_of(self, rows: range, columns: range) -> Tensor:
        """Return the scale of each value of a slice."""
        return self._per_group("scales", rows, columns).float()

    def _numbers(self, rows: range, columns: range) -> Tensor:
        form, values = self.header.dtype, self._parts["values"]
        if form == CT8:
            found: Tensor = values[_slice(rows), _slice(columns)]
            return found.int()
        if form == AWQ:
            return _from_awq(values[_slice(columns), _words(rows)], rows).T
        if form == GPTQ:
            return _from_words(values[_words(columns), _slice(rows)].T, columns)
        return _from_words(values[_slice(rows), _words(columns)], columns) - IN_WORD

    def _per_group(self, part: str, rows: range, columns: range) -> Tensor:
        """Return scales or zeros for each value."""
        group = torch.arange(columns.start, columns.stop) // self.header.group
        if self.header.order is not None:
            group = self._parts["order"][_slice(columns)].long()
        first, last = int(group.min()), int(group.max()) + 1
        held = self._parts[part]
        if part == "zeros" and self.header.dtype == AWQ:
            table = _from_awq(held[first:last, _words(rows)], rows).T
        elif part == "zeros":
            table = _from_words(held[first:last, _words(rows)], rows).T + 1
        elif self.header.dtype in (CT4, CT8):
            table = held[_slice(rows), first:last]
        else:
            table = held[first:last, _slice(rows)].T
        return table[:, group - first]


class Scales:
    """The scale of each value of a matrix."""

    def __init__(self, of: Integers) -> None:
        self._of = of

    def __getitem__(self, at: slice | tuple[slice, ...]) -> Tensor:
        return self._of.scales_of(*self._of.spans(at))


def _slice(span: range) -> slice:
    return slice(span.start, span.stop)


def _words(span: range) -> slice:
    """Return the words that hold the numbers of a span."""
    return slice(span.start // IN_WORD, -(-span.stop // IN_WORD))


def _from_words(words: Tensor, span: range, places: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Return the numbers of a span of the last dimension from the words that hold it."""
    numbers = torch.stack([(words >> 4 * place) & 15 for place in places], dim=-1).flatten(-2)
    first = span.start % IN_WORD
    return numbers[..., first : first + len(span)]


def _from_awq(words: Tensor, span: range) -> Tensor:
    return _from_words(words, span, _PLACES_OF_AWQ)
