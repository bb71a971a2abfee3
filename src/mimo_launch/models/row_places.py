"""Rows of one module among the tokens of another: takes them out, puts them in.

Decides: how a rank completes the rows that it received, and which rows it sends.
Relies on: `layout.step_views` for the places of rows.
Leaves: moving rows between ranks of different modules to the bridge.

Legend: n tokens of this rank, D width, R rows at this rank's tokens, r rows that it exchanges.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.comm.autograd_collectives import gather_rows
from mimo_launch.kinds.transformer_encoder import MapsShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.step_views import StepViews
from mimo_launch.models.projector import owned


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The places of one bridge's rows in one forward, on this rank.

    `sizes` gives the number of rows that each tp rank exchanges; `places` are the indices of all
    rows (with sequence parallelism, only this rank's rows) in this rank's token list, in row order.
    """

    sizes: tuple[int, ...]
    places: Tensor


def row_places(
    views: StepViews,
    bridge: Bridge,
    module: str,
    replica: int,
    forward: int,
    context: ParallelContext,
) -> RowPlaces:
    """Return the places of a bridge's rows in a forward of one of the two modules it joins."""
    runs, cuts = views.places(bridge, module, replica, forward, context.cp.index)
    placed = cuts[context.tp.index] if context.sequence_parallel else runs
    places = [run.place + i for run in placed for i in range(run.num_rows)]
    sizes = tuple(sum(run.num_rows for run in cut) for cut in cuts)
    return RowPlaces(sizes, to_device(np.array(places, np.int64), context.device))


def all_rows(received_rD: Tensor, where: RowPlaces, context: ParallelContext) -> Tensor:
    """Return the rows [R, D] at this rank's tokens, from the rows that it received."""
    if context.sequence_parallel:
        return received_rD
    return gather_rows(received_rD, where.sizes, context.tp)


def with_rows(
    x_nD: Tensor, received_rD: Tensor, where: RowPlaces, context: ParallelContext
) -> Tensor:
    """Return the tokens [n, D] plus the rows that this rank received, added at their places."""
    rows = all_rows(received_rD, where, context)
    return x_nD.index_add(0, where.places, rows.to(x_nD.dtype))


def rows_at(x_nD: Tensor, where: RowPlaces, context: ParallelContext) -> Tensor:
    """Return the rows [r, D] that this rank sends, from its tokens."""
    rows = x_nD.index_select(0, where.places)
    return rows if context.sequence_parallel else owned(rows, where.sizes, context)


class RowReader(ShapedLayer[MapsShape]):
    """A linear map for the rows of each source module; adds them to tokens at their places."""

    def forward(
        self, x_nD: Tensor, rows: Mapping[str, Tensor], places: Mapping[str, RowPlaces]
    ) -> Tensor:
        """Return the tokens [n, D] with the mapped rows of each source, [r, its width], added."""
        for source, linear in self.named_children():
            here = all_rows(rows[source], places[source], self.context)
            x_nD = x_nD.index_add(0, places[source].places, linear(here).to(x_nD.dtype))
        return x_nD
