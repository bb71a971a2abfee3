"""Linear layers and tables, cut over tp or whole; products that accumulate weight gradients.

Decides: where the weight gradients of a step accumulate before their reduction.
Relies on: `parallel_context` for the collectives around a region; FSDP2, which keeps an unsharded
gradient per parameter between the backwards of a step (`comm.torch_internals`).
Leaves: the reduction to FSDP2, norms to `norms`, and the vocabulary to `vocab_parallel`.

Autograd would write each microbatch's gradient in the dtype of the activations, and FSDP2 would
then add it to the sum in another pass: 14 bytes of traffic per weight and microbatch. Adding in the
epilogue of the matmul needs 8, and the sum is never rounded to bf16. Source: Megatron-LM's gradient
accumulation fusion (arXiv:2205.05198 describes its code base).

Legend: N tokens, D width, F features of a region; lower case means this rank's share.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from mimo_launch.comm.torch_internals import FsdpParameter, add_product_, fsdp_parameters
from mimo_launch.kinds.shapes import ColumnShape, OneShape, RowShape, WholeShape
from mimo_launch.layers.adapters import LowRank
from mimo_launch.layers.dropout import Draws
from mimo_launch.layers.packed import packed_linear
from mimo_launch.layers.recompute import Remake, remade
from mimo_launch.layers.region_products import gathered_product, scattered_product
from mimo_launch.layers.shaped_layer import S, ShapedLayer


class GradAccumulator:
    """Adds to the unsharded gradient of an FSDP2 parameter, between the backwards of a step."""

    def __init__(self, parameter: FsdpParameter) -> None:
        self._parameter = parameter

    def add(self, grad_NF: Tensor, x_ND: Tensor) -> Tensor | None:
        """Add the gradient [F, D] of a weight that mapped x [N, D] to [N, F].

        In the only backward of a step, return the gradient to autograd instead: FSDP2 reduces
        gradients of one dtype, and the gradients of other layers are not accumulated then.
        """
        parameter, grad_FN = self._parameter, grad_NF.t()
        wide = parameter.reduce_dtype
        if parameter.gradient is not None:
            add_product_(parameter.gradient, grad_FN, x_ND)
        elif parameter.reduces_now:
            return grad_FN @ x_ND
        elif x_ND.is_cuda:
            parameter.gradient = torch.mm(grad_FN, x_ND, out_dtype=wide)
        else:
            parameter.gradient = grad_FN.to(wide) @ x_ND.to(wide)
        return None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gradients: GradAccumulator
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.gradients = gradients
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        return (
            grad @ weight if of_x else None,
            ctx.gradients.add(grad, x) if of_weight else None,
            grad.sum(dim=0) if of_bias else None,
            None,
        )


def linear(
    x_ND: Tensor, weight_FD: Tensor, bias: Tensor | None, gradients: GradAccumulator | None
) -> Tensor:
    """Return x times the weight, [N, F]; the weight's gradient goes to `gradients`, if given.

    For a frozen weight, x is not kept for the backward.
    """
    if gradients is None or not weight_FD.requires_grad:
        return F.linear(x_ND, weight_FD, bias)
    out: Tensor = _Linear.apply(x_ND, weight_FD, bias, gradients)  # type: ignore[no-untyped-call]
    return out


def mapped(
    layer: ShapedLayer[Any],
    attribute: str,
    x_ND: Tensor,
    bias: Tensor | None,
    tokens_N: Tensor | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Tensor:
    """Return x times a weight of a layer, plus the updates of its maps, if it has any.

    The values of a weight may be kept in few bits; `tokens_N` and `sizes` are for updates.
    """
    weight, packed = getattr(layer, attribute), layer.segments[attribute][0].packed
    if isinstance(layer.adapter, LowRank):
        up = attribute.replace("weight", "up")
        return layer.adapter.product(x_ND, weight, bias, tokens_N, sizes, up, packed)
    if packed is None:
        return linear(x_ND, weight, bias, vars(layer).get(f"{attribute}_gradients"))
    return packed_linear(x_ND, weight, bias, packed)


def _overlaps(layer: ShapedLayer[Any]) -> bool:
    """Return whether a layer has one plain product, and tokens to exchange beside it."""
    context, weights = layer.context, layer.segments.get("weight")
    if not context.sequence_parallel or context.tp.size == 1 or weights is None:
        return False
    if context.device.type == "cuda" and context.tp.copies is None:
        return False
    return not isinstance(layer.adapter, LowRank) and weights[0].packed is None


def accumulate_in_products(unit: FSDPModule) -> None:
    """Make the matmuls of an FSDP unit accumulate the gradients of their weights.

    For units that reduce once per step, in a wider dtype than they compute in.
    """
    for parameter in fsdp_parameters(unit):
        if parameter.name == "weight" and hasattr(parameter.owner, "weight_gradients"):
            parameter.owner.weight_gradients = GradAccumulator(parameter)  # type: ignore[assignment]


class RegionInputs(ShapedLayer[S]):
    """The maps of one input that begin a tensor-parallel region: [N, D] -> [N, f]."""

    def of_tokens(
        self, x_nD: Tensor, draws: Draws | None = None, again: Remake | None = None
    ) -> Tensor:
        """Return the same for tokens before the region, which may be made `again`, not kept."""
        x_ND = self.context.enter(x_nD)
        make = None if again is None else lambda: self.context.enter(again())
        with remade(x_ND, make):
            out: Tensor = self(x_ND, draws)
        return out


class ColumnLinear(RegionInputs[ColumnShape]):
    """Fused linear layers that share an input, with outputs cut over tp: [N, D] -> [N, f].

    The input must have entered the region (`context.enter`). Several ranks may hold the same unit
    of a map (keys and values of a group of query heads, or B and C of a group of Mamba heads) and
    use it for different heads; these maps are a separate parameter, and their features come last.
    """

    shared_weight: Tensor | None
    shared_bias: Tensor | None
    adapter: LowRank | None
    weight_gradients: GradAccumulator | None = None

    def of_tokens(
        self, x_nD: Tensor, draws: Draws | None = None, again: Remake | None = None
    ) -> Tensor:
        """Return the same for tokens before the region; see `RegionInputs.of_tokens`."""
        if self.shared_weight is not None or not _overlaps(self):
            return super().of_tokens(x_nD, draws, again)
        given = x_nD, self.weight, self._whole_bias("weight"), self.weight_gradients
        return gathered_product(*given, self.context.tp, again)

    def forward(self, x_ND: Tensor, draws: Draws | None = None) -> Tensor:
        """Return this rank's features of all outputs, concatenated."""
        if self.weight is None:
            return self._mapped("shared_weight", x_ND, draws)
        out = self._mapped("weight", x_ND, draws)
        if self.shared_weight is None:
            return out
        return torch.cat([out, self._mapped("shared_weight", x_ND, draws)], dim=1)

    def _mapped(self, attribute: str, x_ND: Tensor, draws: Draws | None) -> Tensor:
        maps, bias = self.segments[attribute], self._whole_bias(attribute)
        sizes = {each.name.removesuffix("weight"): each.local_shape[0] for each in maps}
        return mapped(self, attribute, x_ND, bias, None if draws is None else draws.tokens, sizes)

    def _whole_bias(self, attribute: str) -> Tensor | None:
        """Return the bias of all outputs of a weight, with zeros for outputs without one."""
        key = attribute.replace("weight", "bias")
        bias: Tensor | None = getattr(self, key)
        if bias is None or len(bias) == len(getattr(self, attribute)):
            return bias
        sizes = {segment.name: segment.local_shape[0] for segment in self.segments[key]}
        given = iter(torch.split(bias, list(sizes.values())))
        return torch.cat(
            [
                next(given)
                if segment.name.replace("weight", "bias") in sizes
                else bias.new_zeros(segment.local_shape[0])
                for segment in self.segments[attribute]
            ]
        )


class RowLinear(ShapedLayer[RowShape]):
    """A linear layer with input features cut over tp; it ends the region: [N, f] -> [n, D]."""

    adapter: LowRank | None
    weight_gradients: GradAccumulator | None = None

    def forward(self, x_Nf: Tensor, draws: Draws | None = None) -> Tensor:
        """Return the summed output; the bias is added once, after the sum."""
        tp = self.context.tp
        bias, tokens = self.bias if tp.size == 1 else None, None if draws is None else draws.tokens
        if _overlaps(self):
            out = scattered_product(x_Nf, self.weight, self.weight_gradients, tp)
        else:
            out = self.context.leave(mapped(self, "weight", x_Nf, bias, tokens))
        return out if self.bias is None or bias is not None else out + self.bias


class WholeTable(ShapedLayer[OneShape]):
    """A table of vectors: places [n] -> [n, D]."""

    def __len__(self) -> int:
        return self.shape.weight.shape[0]

    def forward(self, places_n: Tensor) -> Tensor:
        """Return the vectors at these places."""
        return F.embedding(places_n, self.weight)


class WholeLinear(ShapedLayer[WholeShape]):
    """One linear map per token: [n, inputs] -> [n, outputs]."""

    adapter: LowRank | None

    def forward(self, x_n: Tensor, draws: Draws | None = None) -> Tensor:
        """Return the map of each token."""
        own = None if draws is None else draws.own
        return mapped(self, "weight", x_n, self.bias, own)
