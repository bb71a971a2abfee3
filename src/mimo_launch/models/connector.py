"""A connector as a stage: rows of encoders in, rows for their reader out.

Decides: that each encoder's rows pass their own linear map; that queries, if any, attend together
with the rows of their image, and that only queries are sent on.
Relies on: `row_places` for the places of rows, `projector` for the rows of this rank.
Leaves: moving rows to the bridge.
Source: learned queries as in the Perceiver resampler of Flamingo (arXiv:2204.14198), which uses
cross-attention; here queries and rows attend to each other, as in Q-Former blocks.

Legend: n tokens of this rank, with its own (queries) first, D width, W width of a row that arrives,
L width of a row that leaves.
"""

import torch
from torch import Tensor, nn

from mimo_launch.kinds.connector import ConnectorKind
from mimo_launch.layers.linear import WholeTable
from mimo_launch.layers.norms import Norm
from mimo_launch.models.projector import owned
from mimo_launch.models.row_places import RowReader
from mimo_launch.models.stage_interface import ListForward, ModelStage, RowsInput
from mimo_launch.spec.encoders import ConnectorModel


class ConnectorStage(ModelStage):
    """Consecutive layers; the first stage takes rows in, the last stage projects rows."""

    kind: ConnectorKind
    model: ConnectorModel
    reads: RowReader
    queries: WholeTable | None
    norm: Norm
    projector: nn.Module

    def inputs(self, forward: ListForward) -> RowsInput:
        """Return the input of a forward."""
        return RowsInput.of(forward, **forward.arrived)

    def forward(self, hidden: Tensor | None, packed: RowsInput) -> Tensor:
        """Return the hidden state [n, D], or on the last stage the rows [r, L] that this rank owns.

        Shapes: hidden [n, D] from the stage before, None on the first.
        """
        x_nD = self._embed(packed) if hidden is None else hidden
        for layer in self.layers.values():
            x_nD = layer(x_nD, packed.mask)
        if not self.stage.is_last:
            return x_nD
        rows: Tensor = self.projector(self.norm(x_nD[: len(packed.own)]))
        return owned(rows, packed.sizes, self.context)

    def _embed(self, packed: RowsInput) -> Tensor:
        own, device = packed.own, self.context.device
        if self.queries is None:
            total = len(own) + packed.extra_tokens
            dtype = self.context.compute_dtype
            x_nD = torch.zeros(total, self.model.hidden, dtype=dtype, device=device)
        else:
            # The list of own tokens holds the queries of one image after another.
            number = torch.arange(own.start, own.stop, device=device) % len(self.queries)
            x_nD = self.queries(number)
            x_nD = nn.functional.pad(x_nD, (0, 0, 0, packed.extra_tokens))
        placed: Tensor = self.reads(x_nD, packed.rows, packed.row_places)
        return placed
