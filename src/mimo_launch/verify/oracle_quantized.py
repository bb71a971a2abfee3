"""The values of a matrix in 4 or 8 bits, written plainly: whole, block by block.

Decides: the levels of NF4 (arXiv:2305.14314, appendix E), and how numbers are rounded to them.
Relies on: sizes of blocks as the spec has them; no code of `layers`.
Leaves: all else to `oracle`.
"""

import torch
from torch import Tensor

from mimo_launch.spec.quantized_base import QuantizedBase

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


def rounded(matrix: Tensor, base: QuantizedBase) -> Tensor:
    """Return the values in float64 that a matrix [outputs, inputs] has after it is kept."""
    blocks = torch.split(matrix.float(), base.inputs, dim=1)
    return torch.cat([_block(each, base.kind) for each in blocks], dim=1).double()


def _block(values: Tensor, kind: str) -> Tensor:
    most = values.abs().amax(dim=1, keepdim=True).clamp(min=1e-38)
    if kind == "nf4":
        levels = torch.tensor(NF4)
        nearest = (values * (1 / most)).unsqueeze(-1).sub(levels).abs().argmin(-1)
        return levels[nearest] * most
    if kind == "int8":
        step = most / 127
        return (values / step).round() * step
    step = most / 448
    return (values / step).clamp(-448, 448).to(torch.float8_e4m3fn).float() * step
