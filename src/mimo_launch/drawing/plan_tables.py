"""The tables of a report: modules, ranks, groups, layers, stages, bridges, losses, estimates.

Decides: the columns, and the words and units of each cell; where long lists are cut.
Relies on: the rows of `rows`, `layer_rows` and `estimate.rows`, which `plan --json` prints.
Leaves: the order of tables, and their form, to `cli` and `plan_page`.
"""

from collections.abc import Iterator, Sequence

from mimo_launch.diag.quantities import (
    bytes_text,
    coords_text,
    percent,
    ranks_text,
    scaled,
    seconds_text,
    sizes_text,
    some,
    span_text,
)
from mimo_launch.drawing.layer_rows import ExpertsRow, LayerRow
from mimo_launch.drawing.rows import (
    BridgeRow,
    GroupRow,
    HeldModule,
    LossRow,
    ModuleRow,
    PeerRow,
    RankRow,
    SampleRow,
    Schedule,
    StageRow,
)
from mimo_launch.drawing.table import Column, Table
from mimo_launch.estimate.rows import Estimates, RankEstimate
from mimo_launch.spec.base import LANGUAGE, Axis

BRIDGES_TITLE = "Bridges (nominal rows of one step)"
LOSS_TERMS_TITLE = "Losses (each the mean of its nominal terms of one step)"
MAX_GROUPS, MAX_RECEIVERS, MAX_PLACES = 8, 8, 8


def bridge_text(name: str) -> str:
    """Return the name of a bridge with an arrow to its target, unless that is language."""
    return name.replace(">", " -> ")


def ends_text(row: BridgeRow) -> str:
    """Return both ends of a bridge."""
    return f"{row.source or row.encoder} -> {row.target or LANGUAGE}"


def flops_text(tflop: float) -> str:
    """Format a number of operations with three digits: `106 TFLOP`."""
    return scaled(tflop * 1e12, "FLOP")


def schedule_title(schedule: Schedule) -> str:
    """Return the length of the step in model time, and the share in which ranks are idle."""
    return (
        f"Schedule: {schedule.makespan:g} units (at least {schedule.lower_bound:g} in any order), "
        f"{percent(schedule.bubble)} of them idle"
    )


def estimates_title(estimates: Estimates) -> str:
    """Return the time and speed of a step in one line."""
    return (
        f"Estimates for {estimates.device}: {seconds_text(estimates.step_seconds)} a step, "
        f"{estimates.tokens_per_second_per_gpu:,.0f} tokens/s per GPU, "
        f"{flops_text(estimates.tflops_per_gpu)}/s per GPU, bubble {percent(estimates.bubble)}"
    )


def _span(ends: tuple[int, int]) -> str:
    return span_text(*ends)


_LAYERS = Column("layers", _span)
_RANKS = Column("ranks", ranks_text)


def module_table(rows: Sequence[ModuleRow]) -> Table:
    """Return a row per module."""
    is_star = all(row.role is None for row in rows)
    more = () if is_star else ("role", Column("reads", ", ".join))
    columns = (
        *("module", "kind", *more, "layers", Column("ranks", _span), Column("grid", sizes_text)),
        *(Column("order", " ".join), "placement", Column("settings", ", ".join)),
    )
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
        cells.append(
            (
                row.name,
                row.kind,
                *(() if row.role is None else (row.role, row.reads)),
                row.layers,
                (row.first_rank, row.last_rank),
                row.grid,
                row.order,
                row.placement,
                [word for word, holds in settings.items() if holds],
            )
        )
    return Table.of(columns, cells)


def rank_table(rows: Sequence[RankRow]) -> Table:
    """Return a row per rank and stage that it holds."""
    has_nodes = rows[0].node is not None
    columns = (
        *("rank", *(("node",) if has_nodes else ()), "module"),
        *(Column("(tp, cp, dp, pp)", coords_text), _LAYERS, "samples"),
        Column("microbatches", _runs_text),
    )
    cells: list[tuple[object, ...]] = []
    for row in rows:
        lead: tuple[int | None, ...] = (row.rank, row.node) if has_nodes else (row.rank,)
        if not row.modules:
            cells.append((*lead, "idle"))
        for held in row.modules:
            layers = held.first_layer, held.last_layer
            cells.append((*lead, held.module, held.coords, layers, held.samples, held))
            lead = (None,) * len(lead)
    return Table.of(columns, cells)


def _runs_text(held: HeldModule) -> str:
    """Say how often a module runs in a step."""
    if held.group_size == 1:
        return str(held.groups)
    return f"{held.groups} group{'s' * (held.groups > 1)} of {held.group_size}"


def group_table(rows: Sequence[GroupRow]) -> Table:
    """Return a row per module and axes, marked if transfers within a layer cross nodes."""
    columns = ("module", Column("axes", " x ".join), "size", Column("groups", _groups_text), "")
    # Gradients over dp normally cross nodes; transfers within a layer should not.
    marked = {
        number: f"crossing nodes: {row.num_crossing} of {len(row.groups)}"
        for number, row in enumerate(rows)
        if row.num_crossing and {*row.axes} & {Axis.TP, Axis.CP} and Axis.DP not in row.axes
    }
    cells = [
        (row.module, row.axes, len(row.groups[0]), row.groups, marked.get(number))
        for number, row in enumerate(rows)
    ]
    return Table.of(columns, cells, marked=marked)


def _groups_text(groups: Sequence[tuple[int, ...]]) -> str:
    return some(groups, MAX_GROUPS, sep="  ", text=ranks_text)


def layer_table(rows: Sequence[LayerRow]) -> Table:
    """Return a row per kind of layer of modules that have several kinds, or experts."""
    kinds = [row.module for row in rows]
    columns = (
        *("module", "kind", "layers", Column("parameters each", scaled)),
        Column("work a step", flops_text),
        Column("activations each", lambda size: f"{bytes_text(size)} a forward"),
    )
    cells = [
        (row.module, row.kind, row.layers, row.parameters, row.tflop, row.kept_bytes)
        for row in rows
        if kinds.count(row.module) > 1 or row.has_experts
    ]
    return Table.of(columns, cells)


def expert_table(rows: Sequence[ExpertsRow]) -> Table:
    """Return a row per module with experts."""
    columns = (
        *("module", "layers", "experts", "top k", Column("grid", sizes_text)),
        Column("a rank", lambda number: f"{number} of a layer"),
        *(Column("parameters", scaled), Column("active", scaled)),
        Column("sends", lambda size: f"{bytes_text(size)} a step"),
    )
    cells = [
        (
            *(row.module, row.layers, row.experts, row.top_k),
            {"ep": row.ep, "tp": row.tp, "dp": row.dp},
            *(row.per_rank, row.parameters, row.active_parameters, row.sent_bytes),
        )
        for row in rows
    ]
    return Table.of(columns, cells)


def places_text(row: ExpertsRow) -> str:
    """Return the ranks that hold each part of a module's experts."""
    places = [
        f"{span_text(place.first_expert, place.last_expert)} on {ranks_text(place.ranks)}"
        for place in row.places
    ]
    return f"experts of {row.module}: {some(places, MAX_PLACES, sep=', ')}"


def stage_table(rows: Sequence[StageRow]) -> Table:
    """Return a row per stage."""
    cells = [
        (row.module, row.stage, (row.first_layer, row.last_layer), row.ranks, row.peak_live)
        for row in rows
    ]
    return Table.of(("module", "stage", _LAYERS, _RANKS, "peak live microbatches"), cells)


def bridge_table(rows: Sequence[BridgeRow]) -> Table:
    """Return a row per bridge."""
    more = (Column("size", bytes_text),) if any(row.bytes is not None for row in rows) else ()
    columns = ("bridge", "replicas", "how", "rows", "copied", *more, Column("", ", ".join))
    cells = []
    for row in rows:
        size = f", {row.group_size} microbatches at once" if row.group_size > 1 else ""
        notes = [] if row.has_backward else ["forward only"]
        if row.sharing > 1:
            notes.append(f"balanced over {row.sharing} replicas")
        if 2 * row.crossing_rows > row.rows:
            notes.append(f"{percent(row.crossing_rows / row.rows)} of rows cross nodes")
        replicas = f"{row.fan} {row.num_src}:{row.num_dst}"
        lead = (ends_text(row), replicas, row.how + size, row.rows, row.local_rows)
        cells.append((*lead, *((row.bytes,) if more else ()), notes))
    return Table.of(columns, cells)


def link_table(bridge: BridgeRow, most: int) -> Table:
    """Return a row for each of the first `most` ranks that send rows over a bridge."""
    sent: dict[int, list[str]] = {}
    for link in bridge.links:
        copied = " copied" * (link.src == link.dst)
        sent.setdefault(link.src, []).append(f"{link.dst}: {link.rows}{copied}")
    to = "" if bridge.target is None else f"{bridge.target} "
    receivers = Column(f"sends to {to}rank: rows", lambda each: some(each, MAX_RECEIVERS, sep=", "))
    return Table.of(
        (f"{bridge.source or bridge.encoder} rank", receivers), list(sent.items())[:most]
    )


def loss_table(rows: Sequence[LossRow]) -> Table:
    """Return a row per loss."""
    cells = [
        (
            row.module,
            row.weight,
            row.terms,
            # The losses of further tokens are called `language.mtp`.
            "labels" if row.module.partition(".")[0] == LANGUAGE else "patches",
        )
        for row in rows
    ]
    return Table.of(("module", Column("weight", "{:g}".format), "terms", ""), cells)


def sample_table(rows: Sequence[SampleRow]) -> Table:
    """Return a row per forward of a rank, with its samples."""
    samples = Column("samples", lambda each: some(each, MAX_RECEIVERS, sep=", ", text=_span))
    columns = ("module", "group or microbatch", samples)
    return Table.of(columns, ((row.module, row.index, row.ranges) for row in rows))


def peer_table(rows: Sequence[PeerRow]) -> Table:
    """Return a row for each rank with which a rank exchanges rows over a bridge."""
    words = {"send": "sends to", "receive": "receives from", "copy": "copies within"}
    by_group = Column("by group", lambda counts: some(counts, MAX_GROUPS, sep=", "))
    columns = (Column("bridge", bridge_text), Column("", words.__getitem__), "rank", "rows")
    cells = ((row.bridge, row.way, row.peer, sum(row.rows), row.rows) for row in rows)
    return Table.of((*columns, by_group), cells)


def not_counted(estimates: Estimates) -> Iterator[str]:
    """Yield what the estimates leave out, module by module."""
    for module, left_out in estimates.not_counted.items():
        hint = "" if "weights" not in left_out else "; `parameters` in its model would count more"
        yield f"Not counted of the layers of {module}: {', '.join(left_out)}{hint}"


def memory_table(estimates: Estimates) -> Table:
    """Return the memory of each group of similar ranks, marked if it is more than a GPU has."""
    limit, ranks = estimates.gpu_memory, estimates.ranks
    of = f" of {bytes_text(limit)}" if limit else ""
    sizes = [Column(name, bytes_text) for name in (f"memory{of}", *ranks[0].memory.parts)]
    cells = [(row.ranks, row.role, row.total_bytes, *row.memory.parts.values()) for row in ranks]
    marked = (n for n, row in enumerate(ranks) if limit and row.total_bytes > limit)
    return Table.of((_RANKS, Column("holds", ", ".join), *sizes), cells, marked=marked)


def work_table(estimates: Estimates) -> Table:
    """Return the work of each group of similar ranks, and the shares of their time."""
    # All-to-alls, for experts on several ranks, are part of the computing time.
    travels = any(row.all_to_all for row in estimates.ranks)
    names = ("computes", *(("all-to-all",) * travels), "waits", "reduces", "updates")
    columns = (
        *(_RANKS, Column("holds", ", ".join), Column("parameters", scaled)),
        *(Column("work a step", flops_text), *(Column(name, percent) for name in names)),
    )
    cells = []
    for row in estimates.ranks:
        travel = (row.all_to_all,) * travels
        shares = (row.computing - sum(travel), *travel, row.waiting, row.reducing, row.updating)
        cells.append((row.ranks, row.role, row.parameters, row.tflop, *shares))
    return Table.of(columns, cells)


def stage_estimate_table(row: RankEstimate) -> Table:
    """Return the stages of one rank, with the times of their actions."""
    columns = (
        *("stage", Column("parameters", "{:,}".format), Column("trained", "{:,}".format)),
        *(Column("work a step", flops_text), Column("forward", _ms), Column("backward", _ms)),
    )
    cells = [
        (
            *(f"{each.module}.{each.stage}", each.parameters, each.trained_parameters),
            *(each.tflop, each.forward_ms, each.backward_ms),
        )
        for each in row.stages
    ]
    return Table.of(columns, cells)


def _ms(milliseconds: float) -> str:
    return seconds_text(milliseconds / 1000)
