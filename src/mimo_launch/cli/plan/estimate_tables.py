"""The estimates of `plan` as tables.

Decides: units and columns.
Relies on: `estimate.rows` for the figures.
Leaves: their place on the page to `tables`.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from mimo_launch.diag.quantities import bytes_text, figure, percent, ranks_text, scaled
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
