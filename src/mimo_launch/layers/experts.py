"""The experts that a rank holds: MLPs over the tokens that have come for each.

Decides: how their weights are fused, and which kernel multiplies.
Relies on: tokens in the order of the experts.
Leaves: how tokens get here to `token_dispatch`.

Legend: M tokens, D width, e experts of this rank, f the part of an expert's width that it holds.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.to_device import to_device
from mimo_launch.kinds.share import even_cut
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import SegmentedModule, sharded
from mimo_launch.layers.pointwise import squared_relu, swiglu
from mimo_launch.spec.language import Moe

# Bytes that the rows of the factors of a grouped product must be a multiple of.
ALIGNMENT = 16
# Major compute capability of Hopper. On Blackwell an expert without tokens may get a gradient that
# is not zero (pytorch/pytorch#172439, open when this was written).
GROUPED_ON = 9


class Experts(SegmentedModule):
    """This rank's experts, [M, D] -> [M, D]; a sum over the ranks that split them is still due.

    A module of its own, because its weights have other replicas than those around it. An expert is
    the canonical tensors `NUMBER.gate.weight` (if it is `gated`: SwiGLU, otherwise squared ReLU),
    `NUMBER.up.weight` and `NUMBER.down.weight`.
    """

    inputs: Tensor
    outputs: Tensor

    def __init__(
        self, context: ParallelContext, model: Moe, width: int, *, gated: bool, out_scale: float
    ) -> None:
        super().__init__()
        self.context, self.width = context, width
        self.between = swiglu if gated else squared_relu
        names = ("gate", "up") if gated else ("up",)
        self.own = even_cut(model.experts, context.ep.size, context.ep.index)
        part = even_cut(model.width, context.expert_tp.size, context.expert_tp.index)
        self.inner = len(part)
        shape, std = (model.width, width), width**-0.5
        self.declare(
            "inputs",
            *(
                sharded(f"{expert}.{name}.weight", shape, 0, part, std=std)
                for expert in self.own
                for name in names
            ),
            dtype=context.dtype,
        )
        std = out_scale * model.width**-0.5
        self.declare(
            "outputs",
            *(
                sharded(f"{expert}.down.weight", (width, model.width), 1, part, std=std)
                for expert in self.own
            ),
            dtype=context.dtype,
        )

    def forward(self, x_MD: Tensor, counts: tuple[int, ...]) -> Tensor:
        """Return the answers; the first `counts[0]` tokens are for the first expert, and so on."""
        inputs = self.inputs.view(len(self.own), -1, self.width)
        outputs = self.outputs.view(len(self.own), self.width, self.inner)
        between = self.context.fused(self.between, grouped_linear(x_MD, inputs, counts))
        return grouped_linear(between, outputs, counts)


def grouped_linear(x_MD: Tensor, weights_eFD: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Return x times the weight of its expert, [M, F].

    An expert without tokens is multiplied, too: its gradient is zero, not absent, and its replicas
    wait for it in a reduction.
    """
    if _is_grouped(x_MD, weights_eFD):
        # Of the same counts as the loop below, so that processors prove where experts end.
        ends = to_device(torch.tensor(counts).cumsum(0, dtype=torch.int32), x_MD.device)
        out: Tensor = torch._grouped_mm(x_MD, weights_eFD.transpose(1, 2), offs=ends)
        return out
    parts = torch.split(x_MD, list(counts))
    return torch.cat([F.linear(x, w) for x, w in zip(parts, weights_eFD.unbind(), strict=True)])


def _is_grouped(x_MD: Tensor, weights_eFD: Tensor) -> bool:
    """Return whether one kernel can multiply for all experts: in bf16, with aligned rows."""
    if not x_MD.is_cuda or torch.cuda.get_device_capability(x_MD.device)[0] != GROUPED_ON:
        return False
    sizes = [size * x_MD.element_size() for size in weights_eFD.shape[1:]]
    aligned = all(size % ALIGNMENT == 0 for size in sizes)
    return x_MD.dtype == torch.bfloat16 and aligned and x_MD.shape[0] > 0
