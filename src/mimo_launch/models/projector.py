"""The end of every encoder: the projector, and the selection of the rows that this rank owns.

Decides: the three projectors, and that of layers before the last.
Relies on: `layout.row_owners.row_cut` for ownership of rows.
Leaves: moving rows to the bridge.

Legend: R rows of a replica's group, r those this rank owns, W width of a row before the projector,
L width of the language model.
"""

from typing import Literal

from torch import Tensor, nn

from mimo_launch.comm.autograd_collectives import split_rows
from mimo_launch.layers.linear import RowLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.mlp import Mlp
from mimo_launch.spec.encoders import Activation


class LinearProjector(nn.Module):
    """One linear map to the language width, its input features cut over tp."""

    def __init__(self, context: ParallelContext, width: int, out: int, *, bias: bool) -> None:
        super().__init__()
        self.context = context
        self.part = context.part(width)
        self.output = RowLinear(context, "linear", width, out, bias=bias)

    def forward(self, x_nW: Tensor) -> Tensor:
        """Return the rows [n, L]."""
        x_NW = self.context.enter(x_nW)
        rows: Tensor = self.output(x_NW[:, self.part.start : self.part.stop])
        return rows


def projector(
    context: ParallelContext,
    kind: Literal["mlp", "linear", "merger"],
    width: int,
    out: int,
    *,
    activation: Activation = "gelu",
    bias: bool = True,
) -> nn.Module:
    """Return the last layer of an encoder, [n, W] -> [n, L]."""
    if kind == "linear":
        return LinearProjector(context, width, out, bias=bias)
    inner = width if kind == "merger" else out
    return Mlp(context, width, inner, out, gated=False, bias=bias, activation=activation)


class DeepProjector(nn.Module):
    """The rows of a layer before the last: a norm of the patches of a row, then two linear maps."""

    def __init__(self, context: ParallelContext, width: int, out: int, *, eps: float) -> None:
        super().__init__()
        self.norm = Norm(context, width, "layer", eps=eps)
        self.mlp = Mlp(context, width, width, out, gated=False, bias=True)

    def forward(self, x_nW: Tensor) -> Tensor:
        """Return the rows [n, L]."""
        rows: Tensor = self.mlp(self.norm(x_nW))
        return rows


def owned(rows_nL: Tensor, sizes: tuple[int, ...], context: ParallelContext) -> Tensor:
    """Return the rows [r, L] that this rank owns; each tp rank owns `sizes[its index]` of them.

    Without sequence parallelism every tp rank has computed all rows; with it, its own and padding.
    """
    # Copies, not views: FSDP hooks the outputs of a module and would lose them on a view.
    if context.sequence_parallel:
        return rows_nL[: sizes[context.tp.index]].clone()
    held = sum(sizes)
    if held < rows_nL.shape[0]:
        rows_nL = rows_nL[:held].clone()
    return split_rows(rows_nL, sizes, context.tp)
