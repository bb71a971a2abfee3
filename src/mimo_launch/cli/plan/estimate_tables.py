"""Estimates, layers and experts as tables of `plan`.

Decides: units and columns; that modules whose layers are all alike are not listed.
Relies on: `estimate.rows` for the figures, `drawing.layer_rows` for the layers.
Leaves: their place on the page to `tables`.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mimo_launch.diag.quantities import (
    bytes_text,
    figure,
    percent,
    ranks_text,
    scaled,
    sizes_text,
    some,
    span_text,
)
from mimo_launch.drawing.layer_rows import ExpertsRow, LayerRow
from mimo_launch.estimate.rows import Estimates, MemoryRow, RankEstimate


def headline(estimates: Estimates) -> str:
    """Return what a step takes, in a line."""
    return (
        f"Estimates for {estimates.device}: {seconds_text(estimates.step_seconds)} a step, "
        f"{estimates.tokens_per_second_per_gpu:,.0f} tokens/s per GPU, "
        f"{flops_text(estimates.tflops_per_gpu)}/s per GPU, bubble {percent(estimates.bubble)}"
    )


def estimate_tables(estimates: Estimates) -> Iterator[RenderableType]:
    """Yield memory and work of each class of ranks."""
    for module, left_out in estimates.not_counted.items():
        hint = "" if "weights" not in left_out else "; `parameters` in its model would count more"
        yield f"Not counted of the layers of {module}: {', '.join(left_out)}{hint}"
    # Fitting ranks to memory is what people come for, so it stands first.
    limit = estimates.gpu_memory
    of = f" of {bytes_text(limit)}" if limit else ""
    names = ("weights", "gradients", "optimizer", "activations", "transfers", "other")
    memory = plain_table("ranks", "holds", f"memory{of}", *names)
    for row in estimates.ranks:
        parts = (bytes_text(size) for size in _parts(row.memory))
        memory.add_row(
            ranks_text(row.ranks), ", ".join(row.role), bytes_text(row.total_bytes), *parts
        )
    yield memory
    yield ""
    yield _work(estimates.ranks)


def stage_table(row: RankEstimate) -> Table:
    """Return the stages of one rank, action by action."""
    table = plain_table("stage", "parameters", "trained", "work a step", "forward", "backward")
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


def _work(rows: Sequence[RankEstimate]) -> Table:
    # Tokens travel where there are experts on several ranks; that is part of computing.
    travels = any(row.all_to_all for row in rows)
    names = ("computes", *(("all-to-all",) * travels), "waits", "reduces", "updates")
    table = plain_table("ranks", "holds", "parameters", "work a step", *names)
    for row in rows:
        travel = (row.all_to_all,) * travels
        shares = (row.computing - sum(travel), *travel, row.waiting, row.reducing, row.updating)
        table.add_row(
            ranks_text(row.ranks),
            ", ".join(row.role),
            scaled(row.parameters),
            flops_text(row.tflop),
            *map(percent, shares),
        )
    return table


def _parts(memory: MemoryRow) -> tuple[int, ...]:
    other = memory.workspace + memory.reserve + memory.device
    return (
        memory.weights,
        memory.gradients,
        memory.optimizer,
        memory.activations,
        memory.transfers,
        other,
    )


def plain_table(*columns: str) -> Table:
    """Return an empty table without lines."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def flops_text(tflop: float) -> str:
    """Return a number of operations with three digits: `106 TFLOP`."""
    return scaled(tflop * 1e12, "FLOP")


def seconds_text(seconds: float) -> str:
    """Return a duration with three digits: `3.23 s`, `66.9 ms`."""
    return f"{figure(seconds)} s" if seconds >= 1 else f"{figure(1000 * seconds)} ms"


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
