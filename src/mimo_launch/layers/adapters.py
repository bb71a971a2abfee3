"""Low-rank updates beside the maps of a layer (LoRA, arXiv:2106.09685).

Decides: that a product adds its updates, `scale * B (A x)`, to its own output, forward and
backward: one product with the A of all maps, one with each B, and no pass over the outputs.
Relies on: `kinds.adapters` for how A and B are cut: after the base map's collectives, or as a part
of its sum, an update needs none; `spec.adapters` for `scale`.
Leaves: freezing the maps themselves to `models.build`.

Legend: N tokens, D inputs, F outputs of all maps, R rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.adapters import DOWN, UP, AdapterShape
from mimo_launch.layers.dropout import dropout
from mimo_launch.layers.packed import packed_linear, values_of
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.spec.quantized_base import QuantizedBase


@dataclass(frozen=True, slots=True)
class _Map:
    """The outputs of a map in its product, its rows in all A, and its rows in all B."""

    outputs: slice
    down: slice
    up: slice


class LowRank(ShapedLayer[AdapterShape]):
    """The updates of maps with one input."""

    down: Tensor
    up: Tensor | None
    shared_up: Tensor | None

    def __init__(self, context: ParallelContext, shape: AdapterShape) -> None:
        super().__init__(context, shape)
        self.drop = dropout(shape.dropout, context.fused)
        self._maps: dict[str, tuple[_Map, ...]] = {}

    def product(
        self,
        x_ND: Tensor,
        weight_FD: Tensor,
        bias_F: Tensor | None,
        tokens_N: Tensor | None,
        sizes: Mapping[str, int] | None = None,
        attribute: str = "up",
        packed: QuantizedBase | None = None,
    ) -> Tensor:
        """Return x times a frozen weight, plus the bias and the updates of its maps, [N, F].

        `sizes` has the outputs of each map by the start of its names; None: there is one map.
        `attribute` has the second matrices of these maps, `packed` says how the weight is kept in
        few bits. `tokens_N` are the states from which dropout draws; None: it drops nothing.

        Raises: ValueError for a weight that trains.
        """
        if weight_FD.requires_grad:
            raise ValueError("a map with an update is frozen, but this one trains")
        up: Tensor | None = getattr(self, attribute)
        if up is None:
            return packed_linear(x_ND, weight_FD, bias_F, packed)
        if attribute not in self._maps:
            self._maps[attribute] = self._placed(attribute, sizes or {"": len(weight_FD)})
        maps, read_ND = self._maps[attribute], None
        if self.drop is not None and tokens_N is not None:
            down = self.segments["down"][0]
            read_ND = self.drop(x_ND, tokens_N, down.start if down.axis == 1 else 0)
        given = x_ND, weight_FD, bias_F, read_ND, self.down, up
        out: Tensor = _Updated.apply(*given, maps, self.shape.scale, packed)  # type: ignore[no-untyped-call]
        return out

    def _placed(self, attribute: str, sizes: Mapping[str, int]) -> tuple[_Map, ...]:
        """Return the places of the maps with second matrices in an attribute."""
        ups, rank = self.segments[attribute], self.shape.rank
        alone = len(sizes) == 1
        outputs = dict(zip(sizes, _slices(list(sizes.values())), strict=True))
        rows = _slices([each.local_shape[0] for each in ups])
        downs = [each.name.removesuffix(DOWN) for each in self.shape.downs]
        found = []
        for each, up in zip(ups, rows, strict=True):
            name = each.name.removesuffix(UP)
            first = downs.index(name) * rank
            place = next(iter(outputs.values())) if alone else outputs[name]
            found.append(_Map(place, slice(first, first + rank), up))
        return tuple(found)


def _slices(sizes: list[int]) -> list[slice]:
    return [slice(*ends) for ends in pairwise(accumulate(sizes, initial=0))]


class _Updated(torch.autograd.Function):
    """A product that adds the updates of its maps; an update reads x, or x after dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_FD: Tensor,
        bias_F: Tensor | None,
        dropped_ND: Tensor | None,
        down_RD: Tensor,
        up_FR: Tensor,
        maps: tuple[_Map, ...],
        scale: float,
        packed: QuantizedBase | None,
    ) -> Tensor:
        values_FD = values_of(weight_FD, packed, x_ND)
        out_NF = F.linear(x_ND, values_FD, bias_F)
        read_ND = x_ND if dropped_ND is None else dropped_ND
        narrow_NR = F.linear(read_ND, down_RD)
        for each in maps:
            narrow, up = narrow_NR[:, each.down], up_FR[each.up]
            out_NF[:, each.outputs].addmm_(narrow, up.t(), alpha=scale)
        ctx.save_for_backward(weight_FD, read_ND, down_RD, up_FR, narrow_NR)
        ctx.maps, ctx.scale, ctx.drops = maps, scale, dropped_ND is not None
        ctx.packed = packed
        return out_NF

    @staticmethod
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor | None, ...]:
        weight_FD, read_ND, down_RD, up_FR, narrow_NR = ctx.saved_tensors
        by_narrow_NR, by_up_FR = torch.empty_like(narrow_NR), torch.empty_like(up_FR)
        if len(ctx.maps) * up_FR.shape[1] < len(down_RD):
            # Some rows of A are for maps of another product.
            by_narrow_NR.zero_()
        for each in ctx.maps:
            grad, narrow = grad_NF[:, each.outputs], narrow_NR[:, each.down]
            result = by_narrow_NR[:, each.down]
            result.addmm_(grad, up_FR[each.up], beta=0, alpha=ctx.scale)
            by_up_FR[each.up].addmm_(grad.t(), narrow, beta=0, alpha=ctx.scale)
        by_x = None
        if ctx.needs_input_grad[0]:
            by_x = grad_NF @ values_of(weight_FD, ctx.packed, read_ND)
        by_dropped = by_narrow_NR @ down_RD if ctx.needs_input_grad[3] else None
        if by_x is not None and not ctx.drops:
            by_x.addmm_(by_narrow_NR, down_RD)
        by_down = by_narrow_NR.t() @ read_ND
        return by_x, None, None, by_dropped, by_down, by_up_FR, None, None, None
