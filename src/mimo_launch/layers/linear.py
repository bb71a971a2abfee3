"""Linear layers and norms, cut over tp.

Decides: which dimension of each weight is cut, and the kind of each gradient.
Relies on: `parallel_context` for the collectives around a region.
Leaves: attention to `attention`, words to `vocab_parallel`.

Legend: N tokens, D width, F features of a region; lower case is this rank's share.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import (
    InitKind,
    Segment,
    SegmentedModule,
    replicated,
    sharded,
)
from mimo_launch.layers.pointwise import EPSILON, add_layer_norm, add_rms_norm, layer_norm, rms_norm
from mimo_launch.layers.weight_gradients import GradAccumulator, linear


class ColumnLinear(SegmentedModule):
    """Linear layers that share an input, fused, their outputs cut over tp: [N, D] -> [N, f].

    `outputs` maps a segment name to its full number of features; those `unbiased` have no bias. The
    input must have entered the region (`context.enter`).
    """

    names_itself = False
    weight_gradients: GradAccumulator | None = None

    def __init__(
        self,
        context: ParallelContext,
        width: int,
        outputs: dict[str, int],
        *,
        bias: bool,
        unbiased: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        std = width**-0.5
        # Of each output: its features on this rank, and whether they have a bias.
        self.parts = [(len(context.part(n)), name not in unbiased) for name, n in outputs.items()]
        self.declare(
            "weight",
            *(
                sharded(f"{name}.weight", (features, width), 0, context.part(features), std=std)
                for name, features in outputs.items()
            ),
            dtype=context.dtype,
        )
        if bias:
            self.declare(
                "bias",
                *(
                    sharded(
                        f"{name}.bias",
                        (features,),
                        0,
                        context.part(features),
                        init="zeros",
                        decay=False,
                    )
                    for name, features in outputs.items()
                    if name not in unbiased
                ),
                dtype=context.dtype,
            )
        else:
            self.bias = None

    def forward(self, x_ND: Tensor) -> Tensor:
        """Return this rank's features of every output, one output after another."""
        return linear(x_ND, self.weight, self._whole_bias(), self.weight_gradients)

    def _whole_bias(self) -> Tensor | None:
        """Return the bias of all outputs, with zeros for those that have none."""
        if self.bias is None or all(biased for _, biased in self.parts):
            return self.bias
        given = iter(torch.split(self.bias, [size for size, biased in self.parts if biased]))
        zeros = self.bias.new_zeros
        return torch.cat([next(given) if biased else zeros(size) for size, biased in self.parts])


class SharedLinear(SegmentedModule):
    """Linear layers of heads of which there are fewer than tp ranks: [N, D] -> one of each name.

    Several ranks hold the same head (keys and values of a group of query heads, or B and C of a
    group of Mamba heads) and serve different heads with it, so the gradient of each is a term of a
    sum.
    """

    names_itself = False

    def __init__(
        self,
        context: ParallelContext,
        width: int,
        names: tuple[str, ...],
        heads: int,
        head_size: int,
        *,
        bias: bool,
    ) -> None:
        super().__init__()
        rows, std = heads * head_size, width**-0.5
        weights = (sharded(f"{x}.weight", (rows, width), 0, range(rows), std=std) for x in names)
        shared = [context.one_of(heads, weight) for weight in weights]
        self.declare("weight", *shared, dtype=context.dtype)
        if bias:
            biases = (
                sharded(f"{x}.bias", (rows,), 0, range(rows), init="zeros", decay=False)
                for x in names
            )
            shared = [context.one_of(heads, each) for each in biases]
            self.declare("bias", *shared, dtype=context.dtype)
        else:
            self.bias = None

    def forward(self, x_ND: Tensor) -> Tensor:
        """Return this rank's head of each name, one after another."""
        return F.linear(x_ND, self.weight, self.bias)


class RowLinear(SegmentedModule):
    """A linear layer whose input features are cut over tp; it ends the region: [N, f] -> [n, D]."""

    names_itself = False
    weight_gradients: GradAccumulator | None = None

    def __init__(
        self,
        context: ParallelContext,
        name: str,
        features: int,
        width: int,
        *,
        bias: bool,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.context = context
        self.declare(
            "weight",
            sharded(
                f"{name}.weight",
                (width, features),
                1,
                context.part(features),
                std=scale * features**-0.5,
            ),
            dtype=context.dtype,
        )
        if bias:
            self.declare(
                "bias",
                replicated(
                    f"{name}.bias",
                    (width,),
                    context.token_grad,
                    counted=context.counts,
                    init="zeros",
                    decay=False,
                ),
                dtype=context.dtype,
            )
        else:
            self.bias = None

    def forward(self, x_Nf: Tensor) -> Tensor:
        """Return the summed output; the bias is added once, after the sum."""
        if self.context.tp.size == 1:
            return linear(x_Nf, self.weight, self.bias, self.weight_gradients)
        out = self.context.leave(linear(x_Nf, self.weight, None, self.weight_gradients))
        return out if self.bias is None else out + self.bias


class Norm(SegmentedModule):
    """RMSNorm or LayerNorm over the width, computed in at least fp32."""

    def __init__(
        self,
        context: ParallelContext,
        width: int,
        kind: Literal["rms", "layer"],
        *,
        eps: float = EPSILON,
        inner: bool = False,
    ) -> None:
        super().__init__()
        self.context, self.eps = context, eps
        tp_grad = context.inner_grad if inner else context.token_grad

        def segment(name: str, init: InitKind) -> Segment:
            return replicated(
                name, (width,), tp_grad, counted=context.counts, init=init, decay=False
            )

        self.declare("weight", segment("weight", "ones"), dtype=context.dtype)
        if kind == "layer":
            self.declare("bias", segment("bias", "zeros"), dtype=context.dtype)
        else:
            self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised over its last dimension."""
        if self.bias is None:
            return self.context.fused(rms_norm, x, self.weight, self.eps)
        return self.context.fused(layer_norm, x, self.weight, self.bias, self.eps)

    def after(self, x: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return x plus its change, and that normalised."""
        if self.bias is None:
            return self.context.fused(add_rms_norm, x, change, self.weight, self.eps)
        return self.context.fused(add_layer_norm, x, change, self.weight, self.bias, self.eps)
