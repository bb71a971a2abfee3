"""Maps that do not train, kept in 4 or 8 bits and multiplied in the type of the activations.

Decides: the codes and the scale of a block of inputs, side by side in the bytes of a row: a cut
between rows, or between blocks, leaves every value as it is.
Relies on: bitsandbytes for NF4, its codes and kernels; torch for FP8 and whole numbers;
`spec.quantized_base` for sizes.
Leaves: which maps are kept so to `kinds`; the rows of each rank to FSDP2.

The backward dequantizes the same bytes again: neither the values nor the inputs of the map are
kept. Scales and products with them are fp32, so values in fp64 are those of fp32.

Legend: F rows, D inputs, K blocks of a row.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.spec.quantized_base import QuantizedBase

MOST_INT8, MOST_FP8 = 127.0, 448.0


def pack(values_FD: Tensor, base: QuantizedBase, scales_FD: Tensor | None = None) -> Tensor:
    """Return the bytes of some rows, [F, bytes].

    `scales_FD` has the scale of each value, one in a block, if the values were quantized before.
    Otherwise the largest value of a block gives its scale.
    """
    rows, inputs = values_FD.shape
    filled = F.pad(values_FD.float(), (0, -inputs % base.inputs))
    blocks = filled.view(rows, -1, base.inputs)
    if base.kind == "nf4":
        from bitsandbytes.functional import quantize_4bit

        packed, state = quantize_4bit(blocks.flatten(), blocksize=base.inputs, quant_type="nf4")
        codes, scales = packed, state.absmax
    else:
        most = MOST_INT8 if base.kind == "int8" else MOST_FP8
        if scales_FD is None:
            # A GPU would multiply by the rounded inverse of a number, and differ from a host.
            largest = blocks.abs().amax(-1)
            scales = largest / torch.full_like(largest, most)
        else:
            scales = scales_FD[:, :: base.inputs].float()
        scales = torch.where(scales > 0, scales, 1.0)
        ratios = blocks / scales[..., None]
        if base.kind == "int8":
            codes = ratios.round().to(torch.int8).view(torch.uint8)
        else:
            codes = ratios.clamp(-most, most).to(torch.float8_e4m3fn).view(torch.uint8)
    shape = *blocks.shape[:2], -1
    parts = codes.view(shape), scales.float().view(*blocks.shape[:2], 1).view(torch.uint8)
    return torch.cat(parts, dim=-1).flatten(1)


def unpack(packed: Tensor, base: QuantizedBase, inputs: int, dtype: torch.dtype) -> Tensor:
    """Return the values of some rows, [F, inputs]."""
    blocks = packed.view(len(packed), -1, base.row_bytes(1))
    codes = blocks[..., : base.code_bytes].contiguous()
    scales_FK1 = blocks[..., base.code_bytes :].contiguous().view(torch.float32)
    if base.kind == "nf4":
        values = _of_nf4(codes, scales_FK1, base.inputs, dtype)
    else:
        numbers = torch.int8 if base.kind == "int8" else torch.float8_e4m3fn
        values = (codes.view(numbers).float() * scales_FK1).to(dtype)
    return values.flatten(1)[:, :inputs]


def values_of(weight_FD: Tensor, packed: QuantizedBase | None, x_ND: Tensor) -> Tensor:
    """Return the values of a weight that multiplies x; those of few bits in the type of x."""
    return weight_FD if packed is None else unpack(weight_FD, packed, x_ND.shape[1], x_ND.dtype)


def packed_linear(
    x_ND: Tensor, weight_FD: Tensor, bias: Tensor | None, packed: QuantizedBase | None
) -> Tensor:
    """Return x times a weight that does not train, which may be kept in few bits, [N, F]."""
    if packed is None:
        return F.linear(x_ND, weight_FD, bias)
    out = packed_product(x_ND, weight_FD, packed, (len(weight_FD), x_ND.shape[1]))
    return out if bias is None else out + bias


def _of_nf4(codes: Tensor, scales_FK1: Tensor, block: int, dtype: torch.dtype) -> Tensor:
    from bitsandbytes.functional import QuantState, dequantize_4bit

    made = torch.float32 if dtype == torch.float64 else dtype
    # Without `code`: the kernels know the levels, and the host would wait for their copy.
    state = QuantState(
        absmax=scales_FK1.flatten(),
        shape=torch.Size((*scales_FK1.shape[:2], block)),
        blocksize=block,
        quant_type="nf4",
        dtype=made,
    )
    found: Tensor = dequantize_4bit(codes.view(-1, 1), state)
    return found.view(state.shape).to(dtype)


class PackedRows:
    """Rows of packed bytes, which values are copied into like into a tensor."""

    def __init__(self, packed: Tensor, base: QuantizedBase, inputs: int) -> None:
        self._packed, self.base = packed, base
        self.shape = torch.Size((len(packed), inputs))

    @classmethod
    def empty(cls, base: QuantizedBase, rows: int, inputs: int) -> "PackedRows":
        """Return new rows on the host, with values unset."""
        packed = torch.empty((rows, base.row_bytes(inputs)), dtype=torch.uint8)
        return cls(packed, base, inputs)

    def values(self) -> Tensor:
        """Return the values in fp32."""
        return unpack(self._packed, self.base, self.shape[1], torch.float32)

    def __getitem__(self, rows: slice) -> "PackedRows":
        return PackedRows(self._packed[rows], self.base, self.shape[1])

    def keeps(self, kind: str, block: int) -> bool:
        """Return whether numbers of a kind, with a scale for `block` inputs, stay as they are."""
        return self.base.kind == kind and block % self.base.inputs == 0

    def copy_(self, values_FD: Tensor, scales_FD: Tensor | None = None) -> None:
        """Take the values of all rows; `scales_FD` as for `pack`."""
        device = self._packed.device
        scales_FD = None if scales_FD is None else scales_FD.to(device)
        self._packed.copy_(pack(values_FD.to(device), self.base, scales_FD))


# Returns x times the transpose of a matrix, or of each of several; its adjoint in x is the same
# with the matrix transposed.
Product = Callable[[Tensor, Tensor], Tensor]


class _PackedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, packed: Tensor, values: Callable[..., Tensor], product: Product
    ) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.values, ctx.product = values, product
        return product(x, values(packed, x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (packed,) = ctx.saved_tensors
        return ctx.product(grad, ctx.values(packed, grad.dtype).mT), None, None, None


def packed_product(
    x: Tensor,
    packed: Tensor,
    base: QuantizedBase,
    shape: tuple[int, ...],
    product: Product = F.linear,
) -> Tensor:
    """Return the product of x with the values of a map, or of several, of this shape."""

    def values(rows: Tensor, dtype: torch.dtype) -> Tensor:
        return unpack(rows, base, shape[-1], dtype).reshape(shape)

    out: Tensor = _PackedProduct.apply(x, packed, values, product)  # type: ignore[no-untyped-call]
    return out
