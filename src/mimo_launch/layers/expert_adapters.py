"""Low-rank updates beside the maps of experts (LoRA, arXiv:2106.09685).

Decides: that each expert has matrices of its own, multiplied in the runs of its tokens.
Relies on: `layers.experts` for grouped products; `kinds.adapters` for how matrices are cut. Of the
gradient of a matrix that is not cut, ranks that split an expert have terms: they are summed as the
backward makes them, since these ranks are not those that share other layers over tp.
Leaves: the maps themselves to `layers.experts`.

Legend: M tokens that have arrived, in the order of this rank's e experts; R rank.
"""

import torch
from torch import Tensor

from mimo_launch.comm.autograd_collectives import enter_tp
from mimo_launch.kinds.adapters import ExpertAdapterShape
from mimo_launch.layers.experts import ExpertRuns, grouped_linear
from mimo_launch.layers.shaped_layer import ShapedLayer


class ExpertUpdates(ShapedLayer[ExpertAdapterShape]):
    """The updates of the maps of this rank's experts."""

    input_down: Tensor
    input_up: Tensor
    output_down: Tensor
    output_up: Tensor

    def of_inputs(self, x_MD: Tensor, runs: ExpertRuns) -> Tensor:
        """Return what is added to the maps of the input, side by side."""
        rank, maps = self.shape.rank, len(self.shape.inputs.downs)
        downs = self._of_each("input_down", enter_tp(self.input_down, self.context.expert_tp))
        narrow = torch.split(grouped_linear(x_MD, downs, runs), rank, dim=1)
        ups = self._of_each("input_up", self.input_up).chunk(maps, dim=1)
        outs = [
            grouped_linear(each, up.contiguous(), runs)
            for each, up in zip(narrow, ups, strict=True)
        ]
        return self.shape.scale * torch.cat(outs, dim=1)

    def of_output(self, hidden_MF: Tensor, runs: ExpertRuns) -> Tensor:
        """Return what is added to the last map; ranks that split an expert have terms of it."""
        narrow = grouped_linear(hidden_MF, self._of_each("output_down", self.output_down), runs)
        ups = self._of_each("output_up", enter_tp(self.output_up, self.context.expert_tp))
        return self.shape.scale * grouped_linear(narrow, ups, runs)

    def _of_each(self, attribute: str, matrices: Tensor) -> Tensor:
        """Return the matrices of each expert, [e, rows, columns]."""
        number = len(self.segments[attribute]) // len(self.shape.own(1)[attribute])
        return matrices.view(number, -1, matrices.shape[1])
