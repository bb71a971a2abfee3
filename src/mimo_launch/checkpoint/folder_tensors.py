"""Reads slices of the tensors of a Hugging Face folder; dequantizes quantized ones.

Decides: which values and scales a slice needs, and that they are multiplied in float32.
Relies on: safetensors, which reads slices and runs no code; `hugging_face.quantized` for the
formats.
Leaves: the slices of each rank to `checkpoint.hugging_face`, copies of whole tensors to `export`.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor

from mimo_launch.checkpoint.folder_integers import Integers
from mimo_launch.hugging_face.folder import TensorHeader
from mimo_launch.hugging_face.integers import IntegerHeader
from mimo_launch.hugging_face.quantized import BLOCK, FP8, GROUP, MXFP4, QuantizedHeader

# Number of rows of a table that are in memory at a time.
ROWS = 4096
# E2M1: a sign bit, two bits of exponent, one of mantissa.
_HALVES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FOUR_BITS = torch.tensor([*_HALVES, *(-half for half in _HALVES)])
# A scale of MXFP4 is a power of two (E8M0).
_EXPONENT_BIAS = 127


class FolderTensors(ExitStack):
    """The tensors of a folder; its files stay open until the `with` block ends.

    Raises: OSError; SafetensorError, RuntimeError or ValueError for a damaged file.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._opened: dict[str, Any] = {}

    def sliceable(self, name: str, header: TensorHeader) -> Any:
        """Return an object to slice without steps, so that `found[0:2, 3:4]` reads a tensor."""
        if isinstance(header, QuantizedHeader):
            values, scales = (self.sliceable(*each) for each in (header.values, header.scales))
            return _Quantized(header, values, scales)
        if isinstance(header, IntegerHeader):
            held = {
                part: self.sliceable(*named)
                for part in ("values", "scales", "zeros", "order")
                if (named := getattr(header, part)) is not None
            }
            return Integers(header, held)
        return self._file(header).get_slice(name)

    def whole(self, name: str, header: TensorHeader) -> Tensor:
        """Return a whole tensor."""
        if isinstance(header, QuantizedHeader | IntegerHeader):
            every: Tensor = self.sliceable(name, header)[:]
            return every
        tensor: Tensor = self._file(header).get_tensor(name)
        return tensor

    def equal(
        self,
        one: tuple[str, TensorHeader],
        other: tuple[str, TensorHeader],
        rows: range,
        columns: Sequence[range],
        beat: Callable[[], None],
    ) -> bool:
        """Return whether two tensors, each given with its name, have equal values in a box."""
        first, second = self.sliceable(*one), self.sliceable(*other)
        across = [slice(each.start, each.stop) for each in columns]
        if one[1].shape != other[1].shape:
            return False
        for start in range(rows.start, rows.stop, ROWS):
            beat()
            at = (slice(start, min(start + ROWS, rows.stop)), *across)
            if not torch.equal(first[at].double(), second[at].double()):
                return False
        return True

    def _file(self, header: TensorHeader) -> Any:
        if header.file not in self._opened:
            file = safe_open(self._folder / header.file, framework="pt")
            self._opened[header.file] = self.enter_context(file)
        return self._opened[header.file]


def mean_row(saved: Any, num_rows: int, beat: Callable[[], None]) -> Tensor:
    """Return the mean of all rows in float64, the same on every rank.

    An output row equal to the mean gives the mean logit, so no new word is likelier than others
    (J. Hewitt, Initializing New Word Embeddings for Pretrained Language Models, 2021).
    """
    total = torch.zeros((), dtype=torch.float64)
    for first in range(0, num_rows, ROWS):
        beat()
        total = total + saved[first : first + ROWS].double().sum(0)
    return total / num_rows


class _Quantized:
    """A tensor given by values and scales, both sliceable; its slices are float32."""

    def __init__(self, header: QuantizedHeader, values: Any, scales: Any) -> None:
        self._header, self._values, self._scales = header, values, scales

    @property
    def is_fp8(self) -> bool:
        """Whether values are in FP8."""
        return self._header.dtype == FP8

    def __getitem__(self, at: slice | tuple[slice, ...]) -> Tensor:
        """Return a slice; dimensions that are not given are read completely."""
        given = at if isinstance(at, tuple) else (at,)
        given += (slice(None),) * (len(self._header.shape) - len(given))
        *stack, rows, columns = (
            range(size)[each] for each, size in zip(given, self._header.shape, strict=True)
        )
        before = tuple(slice(each.start, each.stop) for each in stack)
        if self._header.dtype == MXFP4:
            return self._in_groups(before, columns, rows).mT
        return self._in_blocks(before, rows, columns)

    @property
    def scales(self) -> "_Quantized":
        """The scale of each value, to slice like the values."""
        return _Quantized(self._header, _Ones(self._values.get_shape()), self._scales)

    def _in_blocks(self, before: tuple[slice, ...], rows: range, columns: range) -> Tensor:
        """Return rows and columns of matrices in FP8."""
        there = (*before, slice(rows.start, rows.stop), slice(columns.start, columns.stop))
        values: Tensor = self._values[there].float()
        if self._header.scales[1].numel == 1:
            one: Tensor = self._scales[...]
            return values * one.float()
        (high, row_of), (wide, column_of) = (_scales_of(each, BLOCK) for each in (rows, columns))
        scales: Tensor = self._scales[(*before, high, wide)].float()
        return values * scales[..., row_of, :][..., column_of]

    def _in_groups(self, before: tuple[slice, ...], rows: range, columns: range) -> Tensor:
        """Return rows and columns of matrices in MXFP4, in the order of the file."""
        groups, _ = _scales_of(columns, GROUP)
        there = (*before, slice(rows.start, rows.stop), groups)
        packed, scales = self._values[there], self._scales[there]
        pairs = torch.stack([packed & 15, packed >> 4], dim=-1)
        values = _FOUR_BITS[pairs.flatten(-2).int()]
        whole = torch.ldexp(values, scales.int().unsqueeze(-1) - _EXPONENT_BIAS).flatten(-2)
        first = columns.start - groups.start * GROUP
        return whole[..., first : first + len(columns)]


class _Ones:
    """A tensor of ones, made slice by slice."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = shape

    def __getitem__(self, at: tuple[slice, ...]) -> Tensor:
        return torch.ones(
            [len(range(size)[each]) for size, each in zip(self._shape, at, strict=True)]
        )


@dataclass(frozen=True, slots=True)
class BlockScales:
    """The scale of each value of a tensor, sliced like it; `block` inputs share one."""

    kind: Literal["fp8", "int8"]
    block: int
    each: Any


def block_scales(saved: Any) -> BlockScales | None:
    """Return the scales of a sliceable tensor of numbers that `quantize_base` may keep, if any."""
    if isinstance(saved, _Quantized) and saved.is_fp8:
        return BlockScales("fp8", BLOCK, saved.scales)
    if isinstance(saved, Integers) and saved.block:
        return BlockScales("int8", saved.block, saved.scales)
    return None


def _scales_of(span: range, block: int) -> tuple[slice, Tensor]:
    """Return the slice of scales for a span, and the index into it for each position."""
    first = span.start // block
    return slice(first, -(-span.stop // block)), torch.arange(
        span.start, span.stop
    ) // block - first
