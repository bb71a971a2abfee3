"""The end of every encoder: the projector, and the selection of the rows that this rank owns.

Decides: the projectors, and the projector of layers before the last.
Relies on: `layout.row_owners.row_cut` for ownership of rows.
Leaves: moving rows to the bridge.

Legend: R rows of a replica's group, r rows that this rank owns, W width of a row before the
projector, L width of the language model.
"""

from torch import Tensor, nn

from mimo_launch.comm.autograd_collectives import split_rows
from mimo_launch.kinds.block_shapes import ProjectorShape
from mimo_launch.kinds.vision import DeepShape, VisionProjectorShape
from mimo_launch.layers.linear import RowLinear, WholeLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import ACTIVATIONS
from mimo_launch.layers.shaped_layer import ShapedLayer, add_parts
from mimo_launch.models.mlp import Mlp


class LinearProjector(ShapedLayer[ProjectorShape]):
    """One linear map to the language width, with its input features cut over tp."""

    output: RowLinear

    def __init__(self, context: ParallelContext, shape: ProjectorShape) -> None:
        super().__init__(context, shape)
        self.part = context.part(shape.width)

    def forward(self, x_nW: Tensor) -> Tensor:
        """Return the rows [n, L]."""
        x_NW = self.context.enter(x_nW)
        rows: Tensor = self.output(x_NW[:, self.part.start : self.part.stop])
        return rows


class GatedProjector(ShapedLayer[ProjectorShape]):
    """Two linear maps, LayerNorm, an activation and a gated MLP with its inner width cut over tp.

    The first map is a convolution over the `patches` of a row: it reads channel after channel.
    """

    convolution: WholeLinear
    middle: WholeLinear
    middle_norm: Norm
    mlp: Mlp

    def __init__(self, context: ParallelContext, shape: ProjectorShape) -> None:
        super().__init__(context, shape)
        self.activation = ACTIVATIONS[shape.activation]

    def forward(self, x_nW: Tensor) -> Tensor:
        """Return the rows [n, L]."""
        # No -1 in the shape: there may be no rows.
        shape = len(x_nW), self.shape.patches, x_nW.shape[1] // self.shape.patches
        by_channel = x_nW.reshape(shape).mT.flatten(1)
        normed = self.middle_norm(self.middle(self.convolution(by_channel)))
        rows: Tensor = self.mlp(self.context.fused(self.activation, normed))
        return rows


def projector(context: ParallelContext, shape: ProjectorShape) -> nn.Module:
    """Return the last layer of an encoder, [n, W] -> [n, L]."""
    if shape.kind == "linear":
        return LinearProjector(context, shape)
    return GatedProjector(context, shape) if shape.kind == "gated" else Mlp(context, shape.mlp)


class DeepProjector(ShapedLayer[DeepShape]):
    """The rows of a layer before the last: a norm over the patches of a row, two linear maps."""

    norm: Norm
    mlp: Mlp

    def forward(self, x_nW: Tensor) -> Tensor:
        """Return the rows [n, L]."""
        rows: Tensor = self.mlp(self.norm(x_nW))
        return rows


def vision_projector(context: ParallelContext, shape: VisionProjectorShape) -> nn.Module:
    """Return a projector with further layers, so that they train or are frozen with it."""
    found = projector(context, shape.maps)
    add_parts(found, context, shape.beside)
    return found


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
