"""Modules, groups, bridges and losses of a report as tables of words.

Decides: the columns and the text of each cell; how many groups are written out.
Relies on: the rows of `rows`.
Leaves: the form of tables to `cli` and `html_page`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mimo_launch.diag.quantities import (
    bytes_text,
    percent,
    ranks_text,
    sizes_text,
    some,
    span_text,
)
from mimo_launch.drawing.rows import BridgeRow, GroupRow, LossRow, ModuleRow, Schedule
from mimo_launch.spec.base import LANGUAGE, Axis

BRIDGES_TITLE = "Bridges (nominal rows of one step)"
LOSS_TERMS_TITLE = "Losses (each the mean of its nominal terms of one step)"
MAX_GROUPS = 8


@dataclass(frozen=True, slots=True)
class TextTable:
    """The names of columns, and a cell for each of them in every row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def bridge_text(name: str) -> str:
    """Return the name of a bridge with an arrow to its target, unless that is language."""
    return name.replace(">", " -> ")


def ends_text(row: BridgeRow) -> str:
    """Return both ends of a bridge."""
    return f"{row.source or row.encoder} -> {row.target or LANGUAGE}"


def schedule_title(schedule: Schedule) -> str:
    """Return the length of the step in model time, and the share in which ranks are idle."""
    return (
        f"Schedule: {schedule.makespan:g} units (at least {schedule.lower_bound:g} in any order), "
        f"{percent(schedule.bubble)} of them idle"
    )


def module_table(rows: Sequence[ModuleRow]) -> TextTable:
    """Return a row per module."""
    is_star = all(row.role is None for row in rows)
    more = () if is_star else ("role", "reads")
    columns = ("module", "kind", *more, "layers", "ranks", "grid", "order", "placement", "settings")
    cells = []
    for row in rows:
        settings = {
            "frozen": row.frozen,
            "sequence parallel": row.sequence_parallel,
            "full sharding": row.sharding == "full",
            "recomputed": row.recompute == "full",
            "transformer_engine": row.backend != "torch",
            f"FP8 ({row.fp8})": row.fp8 is not None,
        }
        line = (
            row.name,
            row.kind,
            *(() if row.role is None else (row.role, ", ".join(row.reads or ()))),
            str(row.layers),
            span_text(row.first_rank, row.last_rank),
            sizes_text(row.grid),
            " ".join(row.order),
            row.placement or "",
            ", ".join(word for word, holds in settings.items() if holds),
        )
        cells.append(line)
    return TextTable(columns, tuple(cells))


def group_table(rows: Sequence[GroupRow]) -> TextTable:
    """Return a row per module and axes."""
    cells = []
    for row in rows:
        # Gradients over dp normally cross nodes; transfers within a layer should not.
        is_marked = (
            row.num_crossing and set(row.axes) & {Axis.TP, Axis.CP} and Axis.DP not in row.axes
        )
        line = (
            row.module,
            " x ".join(row.axes),
            str(len(row.groups[0])),
            some(row.groups, MAX_GROUPS, sep="  ", text=ranks_text),
            f"crossing nodes: {row.num_crossing} of {len(row.groups)}" if is_marked else "",
        )
        cells.append(line)
    return TextTable(("module", "axes", "size", "groups", ""), tuple(cells))


def bridge_table(rows: Sequence[BridgeRow]) -> TextTable:
    """Return a row per bridge."""
    more = ("size",) if any(row.bytes is not None for row in rows) else ()
    columns = ("bridge", "replicas", "how", "rows", "copied", *more, "")
    cells = []
    for row in rows:
        size = f", {row.group_size} microbatches at once" if row.group_size > 1 else ""
        notes = [] if row.has_backward else ["forward only"]
        if row.sharing > 1:
            notes.append(f"balanced over {row.sharing} replicas")
        if 2 * row.crossing_rows > row.rows:
            notes.append(f"{percent(row.crossing_rows / row.rows)} of rows cross nodes")
        line = (
            ends_text(row),
            f"{row.fan} {row.num_src}:{row.num_dst}",
            row.how + size,
            str(row.rows),
            str(row.local_rows),
            *(() if row.bytes is None else (bytes_text(row.bytes),)),
            ", ".join(notes),
        )
        cells.append(line)
    return TextTable(columns, tuple(cells))


def loss_table(rows: Sequence[LossRow]) -> TextTable:
    """Return a row per loss."""
    cells = [
        (
            row.module,
            f"{row.weight:g}",
            str(row.terms),
            # The losses of further tokens are called `language.mtp`.
            "labels" if row.module.partition(".")[0] == LANGUAGE else "patches",
        )
        for row in rows
    ]
    return TextTable(("module", "weight", "terms", ""), tuple(cells))
