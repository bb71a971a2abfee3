"""Rows of one module among the tokens of another: taking them out, putting them in.

Decides: how a rank gets all rows that it needs from those that arrived, and which it gives away.
Relies on: places that `runtime` makes of the step's data.
Leaves: moving rows between ranks of different modules to the bridge.

Legend: n tokens of this rank, D width, R rows at this rank's tokens, r those that it exchanges.
"""

from dataclasses import dataclass

from torch import Tensor

from mimo_launch.comm.autograd_collectives import gather_rows
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.projector import owned


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The places of one bridge's rows in one forward, on this rank.

    `sizes` are the numbers of rows that each tp rank exchanges; `places` are the indices of all
    rows (or, under sequence parallelism, of this rank's own) in this rank's token list, in row
    order.
    """

    sizes: tuple[int, ...]
    places: Tensor


def all_rows(received_rD: Tensor, where: RowPlaces, context: ParallelContext) -> Tensor:
    """Return the rows [R, D] at this rank's tokens, from those that it received."""
    if context.sequence_parallel:
        return received_rD
    return gather_rows(received_rD, where.sizes, context.tp)


def rows_at(x_nD: Tensor, where: RowPlaces, context: ParallelContext) -> Tensor:
    """Return the rows [r, D] that this rank sends, from its tokens."""
    rows = x_nD.index_select(0, where.places)
    return rows if context.sequence_parallel else owned(rows, where.sizes, context)
