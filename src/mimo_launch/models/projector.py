"""The end of every encoder: the projector, and the selection of the rows that this rank owns.

Decides: the four projectors, and the projector of layers before the last.
Relies on: `layout.row_owners.row_cut` for ownership of rows.
Leaves: moving rows to the bridge.

Legend: R rows of a replica's group, r rows that this rank owns, W width of a row before the
projector, L width of the language model.
"""

from torch import Tensor, nn

from mimo_launch.comm.autograd_collectives import split_rows
from mimo_launch.kinds.shapes import ProjectorShape
from mimo_launch.kinds.vision import DeepShape
from mimo_launch.layers.linear import RowLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import ACTIVATIONS
from mimo_launch.layers.whole_linear import WholeLinear
from mimo_launch.models.mlp import Mlp


class LinearProjector(nn.Module):
    """One linear map to the language width, with its input features cut over tp."""

    def __init__(self, context: ParallelContext, shape: ProjectorShape) -> None:
        super().__init__()
        self.context = context
        self.part = context.part(shape.width)
        self.output = RowLinear(context, shape.output)

    def forward(self, x_nW: Tensor) -> Tensor:
        """Return the rows [n, L]."""
        x_NW = self.context.enter(x_nW)
        rows: Tensor = self.output(x_NW[:, self.part.start : self.part.stop])
        return rows


class GatedProjector(nn.Module):
    """Two linear maps, LayerNorm, an activation and a gated MLP with its inner width cut over tp.

    The first map is a convolution over the `patches` of a row: it reads channel after channel.
    """

    def __init__(self, context: ParallelContext, shape: ProjectorShape) -> None:
        super().__init__()
        self.context, self.patches = context, shape.patches
        self.activation = ACTIVATIONS[shape.activation]
        self.convolution = WholeLinear(context, shape.convolution)
        self.middle = WholeLinear(context, shape.middle)
        self.middle_norm = Norm(context, shape.middle_norm)
        self.mlp = Mlp(context, shape.mlp)

    def forward(self, x_nW: Tensor) -> Tensor:
        """Return the rows [n, L]."""
        # No -1 in the shape: there may be no rows.
        shape = len(x_nW), self.patches, x_nW.shape[1] // self.patches
        by_channel = x_nW.reshape(shape).mT.flatten(1)
        normed = self.middle_norm(self.middle(self.convolution(by_channel)))
        rows: Tensor = self.mlp(self.context.fused(self.activation, normed))
        return rows


def projector(context: ParallelContext, shape: ProjectorShape) -> nn.Module:
    """Return the last layer of an encoder, [n, W] -> [n, L]."""
    if shape.kind == "linear":
        return LinearProjector(context, shape)
    if shape.kind == "gated":
        return GatedProjector(context, shape)
    return Mlp(context, shape.mlp)


class DeepProjector(nn.Module):
    """The rows of a layer before the last: a norm over the patches of a row, two linear maps."""

    def __init__(self, context: ParallelContext, shape: DeepShape) -> None:
        super().__init__()
        self.norm = Norm(context, shape.norm)
        self.mlp = Mlp(context, shape.mlp)

    def forward(self, x_nW: Tensor) -> Tensor:
        """Return the rows [n, L]."""
        rows: Tensor = self.mlp(self.norm(x_nW))
        return rows


def owned(rows_nL: Tensor, sizes: tuple[int, ...], context: ParallelContext) -> Tensor:
    """Return the rows [r, L] that this rank owns; each tp rank owns `sizes[its index]` of them.

    Without sequence parallelism every tp rank has computed all rows; with it, its own rows and
    padding.
    """
    # Copies, not views: FSDP hooks the outputs of a module and would lose them on a view.
    if context.sequence_parallel:
        return rows_nL[: sizes[context.tp.index]].clone()
    held = sum(sizes)
    if held < rows_nL.shape[0]:
        rows_nL = rows_nL[:held].clone()
    return split_rows(rows_nL, sizes, context.tp)
