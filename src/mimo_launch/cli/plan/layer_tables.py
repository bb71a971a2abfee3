"""Layers of several kinds, and experts, as tables of `plan`.

Decides: units and columns; that modules whose layers are all alike are not listed.
Relies on: `drawing.layer_row_types` for the facts.
Leaves: their place on the page to `tables`.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mimo_launch.cli.plan.estimate_tables import flops_text, plain_table
from mimo_launch.diag.quantities import bytes_text, ranks_text, scaled, sizes_text, some, span_text
from mimo_launch.drawing.layer_row_types import ExpertsRow, LayerRow

MAX_PLACES = 8


def layer_parts(
    layers: Sequence[LayerRow], experts: Sequence[ExpertsRow]
) -> Iterator[RenderableType]:
    """Yield the layers of modules that have several kinds of them or experts, and the experts."""
    various = [row for row in layers if _is_various(row, layers)]
    if various:
        yield from ("", Text("Layers", style="bold"), _layers(various))
    if experts:
        yield from ("", Text("Experts", style="bold"), _experts(experts))
    for row in experts:
        places = [
            f"{span_text(each.first_expert, each.last_expert)} on {ranks_text(each.ranks)}"
            for each in row.places
        ]
        yield f"experts of {row.module}: {some(places, MAX_PLACES, sep=', ')}"


def _is_various(row: LayerRow, rows: Sequence[LayerRow]) -> bool:
    kinds = {other.kind for other in rows if other.module == row.module}
    return len(kinds) > 1 or row.has_experts


def _layers(rows: Sequence[LayerRow]) -> Table:
    table = plain_table("module", "kind", "layers", "parameters of one", "work a step", "one keeps")
    for row in rows:
        table.add_row(
            row.module,
            row.kind,
            str(row.layers),
            scaled(row.parameters),
            flops_text(row.tflop),
            f"{bytes_text(row.kept_bytes)} a forward",
        )
    return table


def _experts(rows: Sequence[ExpertsRow]) -> Table:
    table = plain_table(
        "module", "layers", "experts", "top k", "grid", "a rank", "parameters", "active", "sends"
    )
    for row in rows:
        table.add_row(
            row.module,
            str(row.layers),
            str(row.experts),
            str(row.top_k),
            sizes_text({"ep": row.ep, "tp": row.tp, "dp": row.dp}),
            f"{row.per_rank} of a layer",
            scaled(row.parameters),
            scaled(row.active_parameters),
            f"{bytes_text(row.sent_bytes)} a step",
        )
    return table
