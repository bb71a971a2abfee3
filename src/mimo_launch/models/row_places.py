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
from mimo_launch.layout.row_owners import Run
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.step_views import StepViews
from mimo_launch.models.projector import owned


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The places of one bridge's rows in one forward, on this rank.

    `sizes` gives the number of rows that each tp rank exchanges; `places` are the indices of all
    rows (with sequence parallelism, only this rank's rows) in this rank's token list, in row order.
    `apart`, where a reader maps them in two ways: which of these rows of language belong to tokens
    of images and clips, and which to tokens of text.
    """

    sizes: tuple[int, ...]
    places: Tensor
    apart: tuple[Tensor, Tensor] | None = None

    def joined(self, media_D: Tensor, text_D: Tensor) -> Tensor:
        """Return all rows in order, from those of media and those of text. Raises: ValueError."""
        if self.apart is None:
            raise ValueError("rows that are not told apart")
        rows = media_D.new_empty((len(self.places), media_D.shape[1]))
        media, text = self.apart
        return rows.index_copy(0, media, media_D).index_copy(0, text, text_D.to(rows.dtype))


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
    apart = None
    if views.layout[bridge.target].reads_text_apart:
        is_media = [each for run in placed for each in _of_media(views, bridge.target, run)]
        found = (np.flatnonzero(is_media), np.flatnonzero(np.logical_not(is_media)))
        apart = (to_device(found[0], context.device), to_device(found[1], context.device))
    return RowPlaces(sizes, to_device(np.array(places, np.int64), context.device), apart)


def _of_media(views: StepViews, reader: str, run: Run) -> list[bool]:
    """Return of each row of language in a run whether its token stands for a row of an encoder."""
    spans = views.data.samples[run.sample].spans
    read = [span.position + i for span in spans.get(reader, ()) for i in range(span.num_positions)]
    media = {
        line.position + i
        for name in views.layout.language.reads
        for span in spans.get(name, ())
        for line in span.lines
        for i in range(line.num_positions)
    }
    return [each in media for each in read[run.first_row : run.first_row + run.num_rows]]


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


def rows_at(
    x_nD: Tensor, where: RowPlaces, context: ParallelContext, text_nD: Tensor | None = None
) -> Tensor:
    """Return the rows [r, D] that this rank sends, from its tokens.

    Rows of text are of `text_nD`, if a reader takes them apart.
    """
    if where.apart is not None and text_nD is not None:
        media, text = (where.places.index_select(0, each) for each in where.apart)
        rows = where.joined(x_nD.index_select(0, media), text_nD.index_select(0, text))
    else:
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
