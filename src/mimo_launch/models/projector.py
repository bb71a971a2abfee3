"""The end of every encoder: the projector, and the selection of the rows that this rank owns.

Decides: the four projectors, and the projector of layers before the last.
Relies on: `layout.row_owners.row_cut` for ownership of rows.
Leaves: moving rows to the bridge.

Legend: R rows of a replica's group, r rows that this rank owns, W width of a row before the
projector, L width of the language model.
"""

from torch import Tensor, nn

from mimo_launch.comm.autograd_collectives import split_rows
from mimo_launch.layers.linear import RowLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import ACTIVATIONS
from mimo_launch.layers.whole_linear import WholeLinear
from mimo_launch.models.mlp import Mlp
from mimo_launch.spec.encoder_blocks import Projector, ProjectorActivation


class LinearProjector(nn.Module):
    """One linear map to the language width, with its input features cut over tp."""

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


class GatedProjector(nn.Module):
    """Two linear maps, LayerNorm, an activation and a gated MLP with its inner width cut over tp.

    The first map is a convolution over the `patches` of a row: it reads channel after channel.
    """

    def __init__(
        self,
        context: ParallelContext,
        width: int,
        inner: int,
        out: int,
        *,
        patches: int,
        activation: ProjectorActivation,
        bias: bool,
    ) -> None:
        super().__init__()
        self.context, self.patches = context, patches
        self.activation = ACTIVATIONS[activation]
        self.convolution = WholeLinear(context, width, out, bias=bias)
        self.middle = WholeLinear(context, out, out, bias=False)
        self.middle_norm = Norm(context, out, "layer")
        self.mlp = Mlp(context, out, inner, out, gated=True, bias=False)

    def forward(self, x_nW: Tensor) -> Tensor:
        """Return the rows [n, L]."""
        # No -1 in the shape: there may be no rows.
        shape = len(x_nW), self.patches, x_nW.shape[1] // self.patches
        by_channel = x_nW.reshape(shape).mT.flatten(1)
        normed = self.middle_norm(self.middle(self.convolution(by_channel)))
        rows: Tensor = self.mlp(self.context.fused(self.activation, normed))
        return rows


def projector(
    context: ParallelContext,
    kind: Projector,
    width: int,
    out: int,
    *,
    activation: ProjectorActivation = "gelu",
    bias: bool = True,
    inner: int | None = None,
    patches: int = 1,
) -> nn.Module:
    """Return the last layer of an encoder, [n, W] -> [n, L].

    A gated projector has an `inner` width, by default W, and reads the `patches` of a row. Two maps
    have an `inner` width between them, by default L; a merger always has W.
    """
    if kind == "linear":
        return LinearProjector(context, width, out, bias=bias)
    if kind == "gated":
        return GatedProjector(
            context,
            width,
            inner or width,
            out,
            patches=patches,
            activation=activation,
            bias=bias,
        )
    between = width if kind == "merger" else inner or out
    return Mlp(context, width, between, out, gated=False, bias=bias, activation=activation)


class DeepProjector(nn.Module):
    """The rows of a layer before the last: a norm over the patches of a row, two linear maps."""

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
