"""Low-rank updates beside the maps of a layer (LoRA, arXiv:2106.09685).

Decides: that an update is `scale * B (A x)`, two products for each map.
Relies on: `kinds.adapters` for how A and B are cut: after the base map's collectives, or as a part
of its sum, an update needs none; `spec.adapters` for `scale`.
Leaves: freezing the maps themselves to `models.build`.

Legend: N tokens, R rank; f this rank's outputs of all maps.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.adapters import DOWN, UP, AdapterShape
from mimo_launch.layers.dropout import dropout
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.shaped_layer import ShapedLayer


class LowRank(ShapedLayer[AdapterShape]):
    """The updates of maps with one input."""

    down: Tensor
    up: Tensor | None
    shared_up: Tensor | None

    def __init__(self, context: ParallelContext, shape: AdapterShape) -> None:
        super().__init__(context, shape)
        self.drop = dropout(shape.dropout, context.fused)

    def forward(
        self, x_N: Tensor, sizes: Mapping[str, int] | None = None, tokens_N: Tensor | None = None
    ) -> Tensor:
        """Return what is added to the outputs of all maps, [N, f].

        `sizes` has the outputs of each map by the start of its names; None: there is one map.
        `tokens_N` are the states from which dropout draws; None: it drops nothing.
        """
        if self.drop is not None and tokens_N is not None:
            down = self.segments["down"][0]
            x_N = self.drop(x_N, tokens_N, down.start if down.axis == 1 else 0)
        narrow = torch.split(F.linear(x_N, self.down), self.shape.rank, dim=1)
        names = (each.name.removesuffix(DOWN) for each in self.shape.downs)
        x_by_map, ups = dict(zip(names, narrow, strict=True)), self._ups()
        outs = [
            F.linear(x_by_map[name], ups[name]) if name in ups else x_N.new_zeros(len(x_N), size)
            for name, size in (sizes or dict.fromkeys(ups, 0)).items()
        ]
        return self.shape.scale * (outs[0] if len(outs) == 1 else torch.cat(outs, dim=1))

    def _ups(self) -> dict[str, Tensor]:
        """Return the second matrix of each map, by the start of its names."""
        found: dict[str, Tensor] = {}
        for values, attribute in ((self.up, "up"), (self.shared_up, "shared_up")):
            if values is not None:
                parts = self.segments[attribute]
                rows = torch.split(values, [part.local_shape[0] for part in parts])
                names = (part.name.removesuffix(UP) for part in parts)
                found |= dict(zip(names, rows, strict=True))
        return found
