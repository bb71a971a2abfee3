"""Estimates, layers and experts as tables of `plan`.

Decides: units and columns; that a module with one kind of layer gets no list of layers.
Relies on: `estimate.rows` for the figures, `drawing.layer_rows` for the layers.
Leaves: the order on the page to `plan_tables`.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from mimo_launch.cli.shared.plain_table import PlainTable
from mimo_launch.diag.quantities import (
    bytes_text,
    percent,
    ranks_text,
    scaled,
    seconds_text,
    sizes_text,
    some,
    span_text,
)
from mimo_launch.drawing.layer_rows import ExpertsRow, LayerRow
from mimo_launch.drawing.plan_tables import TextTable
from mimo_launch.estimate.rows import Estimates, RankEstimate


def headline(estimates: Estimates) -> str:
    """Return the time and speed of a step in one line."""
    return (
        f"Estimates for {estimates.device}: {seconds_text(estimates.step_seconds)} a step, "
        f"{estimates.tokens_per_second_per_gpu:,.0f} tokens/s per GPU, "
        f"{flops_text(estimates.tflops_per_gpu)}/s per GPU, bubble {percent(estimates.bubble)}"
    )


def estimate_tables(estimates: Estimates) -> Iterator[RenderableType]:
    """Yield the tables of memory and of work, with one row per group of similar ranks."""
    for module, left_out in estimates.not_counted.items():
        hint = "" if "weights" not in left_out else "; `parameters` in its model would count more"
        yield f"Not counted of the layers of {module}: {', '.join(left_out)}{hint}"
    # Memory comes first: users mostly want to know whether ranks fit.
    limit = estimates.gpu_memory
    of = f" of {bytes_text(limit)}" if limit else ""
    memory = PlainTable("ranks", "holds", f"memory{of}", *estimates.ranks[0].memory.parts)
    for row in estimates.ranks:
        sizes = (row.total_bytes, *row.memory.parts.values())
        memory.add_row(ranks_text(row.ranks), ", ".join(row.role), *map(bytes_text, sizes))
    yield memory
    yield ""
    # All-to-alls, for experts on several ranks, are part of the computing time.
    travels = any(row.all_to_all for row in estimates.ranks)
    names = ("computes", *(("all-to-all",) * travels), "waits", "reduces", "updates")
    work = PlainTable("ranks", "holds", "parameters", "work a step", *names)
    for row in estimates.ranks:
        travel = (row.all_to_all,) * travels
        shares = (row.computing - sum(travel), *travel, row.waiting, row.reducing, row.updating)
        work.add_row(
            ranks_text(row.ranks),
            ", ".join(row.role),
            scaled(row.parameters),
            flops_text(row.tflop),
            *map(percent, shares),
        )
    yield work


def stage_table(row: RankEstimate) -> PlainTable:
    """Return the table of the stages of one rank, with the times of their actions."""
    table = PlainTable("stage", "parameters", "trained", "work a step", "forward", "backward")
    for each in row.stages:
        table.add_row(
            f"{each.module}.{each.stage}",
            f"{each.parameters:,}",
            f"{each.trained_parameters:,}",
            flops_text(each.tflop),
            seconds_text(each.forward_ms / 1000),
            seconds_text(each.backward_ms / 1000),
        )
    return table


def text_table(table: TextTable) -> PlainTable:
    """Return a table of words."""
    shown = PlainTable(*table.columns)
    for row in table.rows:
        shown.add_row(*row)
    return shown


def flops_text(tflop: float) -> str:
    """Format a number of operations with three digits: `106 TFLOP`."""
    return scaled(tflop * 1e12, "FLOP")


MAX_PLACES = 8


def layer_parts(
    layers: Sequence[LayerRow], experts: Sequence[ExpertsRow]
) -> Iterator[RenderableType]:
    """Yield tables of experts, and of layers for modules with several kinds or with experts."""
    table = PlainTable(
        "module", "kind", "layers", "parameters each", "work a step", "activations each"
    )
    for row in layers:
        kinds = {other.kind for other in layers if other.module == row.module}
        if len(kinds) > 1 or row.has_experts:
            table.add_row(
                row.module,
                row.kind,
                str(row.layers),
                scaled(row.parameters),
                flops_text(row.tflop),
                f"{bytes_text(row.kept_bytes)} a forward",
            )
    if table.row_count:
        yield from ("", Text("Layers", style="bold"), table)
    table = PlainTable(
        "module", "layers", "experts", "top k", "grid", "a rank", "parameters", "active", "sends"
    )
    for each in experts:
        table.add_row(
            each.module,
            str(each.layers),
            str(each.experts),
            str(each.top_k),
            sizes_text({"ep": each.ep, "tp": each.tp, "dp": each.dp}),
            f"{each.per_rank} of a layer",
            scaled(each.parameters),
            scaled(each.active_parameters),
            f"{bytes_text(each.sent_bytes)} a step",
        )
    if table.row_count:
        yield from ("", Text("Experts", style="bold"), table)
    for each in experts:
        places = [
            f"{span_text(place.first_expert, place.last_expert)} on {ranks_text(place.ranks)}"
            for place in each.places
        ]
        yield f"experts of {each.module}: {some(places, MAX_PLACES, sep=', ')}"
