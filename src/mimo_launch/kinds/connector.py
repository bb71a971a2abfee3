"""Connectors: transformers over the rows of other encoders.

Decides: the layers before the blocks; how many rows they make from the rows they read.
Relies on: `transformer_encoder` for the rest.
Leaves: placing rows among their tokens to `layout.replica_views`.
"""

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.facts import RowReading
from mimo_launch.kinds.layer import Ends
from mimo_launch.kinds.shapes import OneShape, table
from mimo_launch.kinds.transformer_encoder import MapsShape, PatchWork, TransformerEncoderKind
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.encoders import ConnectorModel


@frozen
class ReadRowsShape(LayerShape):
    """The layers of a connector before its blocks."""

    reads: MapsShape
    queries: OneShape | None


@frozen
class ConnectorReading(RowReading):
    """Rows are its tokens, or come beside its queries."""

    model: ConnectorModel

    @property
    def takes_rows(self) -> bool:
        """It reads the rows of encoders."""
        return True

    @property
    def beside(self) -> bool:
        """Whether it has queries as its own tokens; otherwise the rows that it reads are tokens."""
        return self.model.queries is not None

    @property
    def in_turn(self) -> bool:
        """Whether the rows of several encoders are concatenated."""
        return self.model.merge == "rows"

    @property
    def rows_of_each(self) -> int | None:
        """The number of its queries, if it has any."""
        return self.model.queries


@frozen
class ConnectorKind(TransformerEncoderKind):
    """A resampler (learned queries) or a merger of several encoders, with blocks of attention."""

    model: ConnectorModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.connector:ConnectorStage"

    @property
    def input(self) -> None:
        """It reads only rows, so it has no input from samples."""
        return

    @property
    def reading(self) -> RowReading:
        """Rows come beside its queries, if it has any; each image becomes as many rows as these."""
        return ConnectorReading(self.model)

    @property
    def patch_work(self) -> PatchWork:
        """No work for its own tokens; the rows that it reads pass maps."""
        return PatchWork(products=0, saved=0)

    def before(self, ends: Ends) -> ReadRowsShape:
        """Return a linear map for each encoder, and the queries."""
        queries, width = self.model.queries, self.model.hidden
        learned = None if queries is None else table(queries, width)
        return ReadRowsShape(MapsShape(ends.sources, width), learned)
