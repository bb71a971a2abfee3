"""The tables of a report: modules, ranks, groups, layers, stages, bridges, losses, estimates.

Decides: the columns, and the words and units of each cell; where long lists are cut.
Relies on: the rows of `rows`, `layer_rows` and `estimate.rows`, which `plan --json` prints.
Leaves: the order of tables, and their form, to `cli` and `plan_page`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mimo_launch.diag.quantities import (
    bytes_text,
    coords_text,
    counted,
    listed,
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
from mimo_launch.estimate.host_costs import HostCosts
from mimo_launch.estimate.rows import Estimates, RankEstimate
from mimo_launch.spec.base import LANGUAGE, Axis

BRIDGES_TITLE = "Bridges (rows of one step)"
HOSTS_TITLE = "Hosts and storage (estimated)"
LOSS_TERMS_TITLE = "Losses (each the mean of its terms of one step)"
MAX_GROUPS, MAX_RECEIVERS, MAX_PLACES = 8, 8, 8


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


def host_lines(hosts: HostCosts) -> Iterator[str]:
    """Yield what hosts and storage take, besides the work of GPUs."""
    python, agreeing = map(seconds_text, (hosts.python_seconds, hosts.agreeing_seconds))
    yield f"a step: {python} of Python on each rank for its samples, {agreeing} to agree on them"
    groups = f" until all ranks have their {counted(hosts.groups, 'process group')}"
    yield (
        f"start: {seconds_text(hosts.start_seconds)}{groups * bool(hosts.groups)}; compiling on "
        f"GPUs: about {seconds_text(hosts.compiling_seconds)}"
    )
    if hosts.checkpoint_bytes is None:
        return
    stall, save, resume = (
        seconds_text(each or 0.0)
        for each in (hosts.stall_seconds, hosts.save_seconds, hosts.resume_seconds)
    )
    yield (
        f"a checkpoint: {bytes_text(hosts.checkpoint_bytes)}, saved in {save}, in which training "
        f"waits for {stall}; read in {resume}"
    )


def _layers(row: StageRow | HeldModule) -> str:
    return span_text(row.first_layer, row.last_layer)


_RANKS = Column("ranks", text=ranks_text)
_HOLDS = Column("holds", "role", ", ".join)
_PARAMETERS = Column("parameters", text=scaled)
_WORK = Column("work a step", "tflop", flops_text)


def module_table(rows: Sequence[ModuleRow]) -> Table:
    """Return a row per module."""
    is_star = all(row.role is None for row in rows)
    columns = (
        Column("module", "name"),
        Column("kind"),
        *(() if is_star else (Column("role"), Column("reads", text=", ".join))),
        Column("layers"),
        Column("ranks", lambda row: span_text(row.first_rank, row.last_rank)),
        Column("grid", text=sizes_text),
        Column("order", text=" ".join),
        Column("placement"),
        Column("settings", _settings_text),
    )
    return Table(columns, rows)


def _settings_text(row: ModuleRow) -> str:
    settings = {
        "frozen": row.frozen,
        "frozen except its projector": row.frozen_part == "except_projector",
        f"{row.frozen_part} frozen": (row.frozen_part or "").startswith("layers"),
        f"adapter of rank {row.adapter_rank}": row.adapter_rank is not None,
        f"base in {row.quantize_base}": row.quantize_base is not None,
        f"shards over {row.shard_over}": row.shard_over is not None,
        "sequence parallel": row.sequence_parallel,
        "full sharding": row.sharding == "full",
        "recomputed": row.recompute == "full",
        f"{listed(row.recomputed_parts)} recomputed": bool(row.recomputed_parts),
        f"{listed(row.offload)} on the host": bool(row.offload),
        "transformer_engine": row.backend != "torch",
        f"FP8 ({row.fp8})": row.fp8 is not None,
    }
    return ", ".join(word for word, holds in settings.items() if holds)


def rank_table(rows: Sequence[RankRow]) -> Table:
    """Return a row per rank and stage that it holds."""
    names = ("rank", "node", "module", "(tp, cp, dp, pp)", "layers", "samples", "microbatches")
    cells: list[tuple[object, ...]] = []
    for row in rows:
        lead: tuple[int | None, int | None] = (row.rank, row.node)
        for held in row.modules:
            times = coords_text(held.coords), _layers(held), held.samples, _runs_text(held)
            cells.append((*lead, held.module, *times))
            lead = (None, None)
        if not row.modules:
            cells.append((*lead, "idle", *[None] * 4))
    table = Table.of_cells(names, cells)
    if rows[0].node is not None:
        return table
    return replace(table, columns=(table.columns[0], *table.columns[2:]))


def _runs_text(held: HeldModule) -> str:
    """Say how often a module runs in a step."""
    if held.group_size == 1:
        return str(held.groups)
    return f"{counted(held.groups, 'group')} of {held.group_size}"


def group_table(rows: Sequence[GroupRow]) -> Table:
    """Return a row per module and axes, marked if transfers within a layer cross nodes."""

    def is_marked(row: GroupRow) -> bool:
        # Gradients over dp normally cross nodes; transfers within a layer should not.
        is_of_layers = bool({*row.axes} & {Axis.TP, Axis.CP}) and Axis.DP not in row.axes
        return is_of_layers and row.num_crossing > 0

    def note(row: GroupRow) -> str | None:
        crossing = f"crossing nodes: {row.num_crossing} of {len(row.groups)}"
        return crossing if is_marked(row) else None

    columns = (
        Column("module"),
        Column("axes", text=" x ".join),
        Column("size", lambda row: len(row.groups[0])),
        Column("groups", text=lambda each: some(each, MAX_GROUPS, sep="  ", text=ranks_text)),
        Column("", note),
    )
    marked = frozenset(number for number, row in enumerate(rows) if is_marked(row))
    return Table(columns, rows, marked)


def layer_table(rows: Sequence[LayerRow]) -> Table:
    """Return a row per kind of layer of modules that have several kinds, or experts."""
    kinds = [row.module for row in rows]
    columns = (
        Column("module"),
        Column("kind"),
        Column("layers"),
        Column("parameters each", "parameters", scaled),
        _WORK,
        Column("activations each", "kept_bytes", lambda size: f"{bytes_text(size)} a forward"),
    )
    return Table(columns, [row for row in rows if kinds.count(row.module) > 1 or row.has_experts])


def expert_table(rows: Sequence[ExpertsRow]) -> Table:
    """Return a row per module with experts."""
    columns = (
        Column("module"),
        Column("layers"),
        Column("experts"),
        Column("top k", "top_k"),
        Column("grid", lambda row: sizes_text({"ep": row.ep, "tp": row.tp, "dp": row.dp})),
        Column("a rank", "per_rank", "{} of a layer".format),
        _PARAMETERS,
        Column("active", "active_parameters", scaled),
        Column("sends", "sent_bytes", lambda size: f"{bytes_text(size)} a step"),
    )
    return Table(columns, rows)


def places_text(row: ExpertsRow) -> str:
    """Return the ranks that hold each part of a module's experts."""
    places = [
        f"{span_text(place.first_expert, place.last_expert)} on {ranks_text(place.ranks)}"
        for place in row.places
    ]
    return f"experts of {row.module}: {some(places, MAX_PLACES, sep=', ')}"


def stage_table(rows: Sequence[StageRow]) -> Table:
    """Return a row per stage."""
    layers, peak = Column("layers", _layers), Column("peak live microbatches", "peak_live")
    return Table((Column("module"), Column("stage"), layers, _RANKS, peak), rows)


def bridge_table(rows: Sequence[BridgeRow]) -> Table:
    """Return a row per bridge."""
    has_sizes = any(row.bytes is not None for row in rows)
    columns = (
        Column("bridge", ends_text),
        Column("replicas", lambda row: f"{row.fan} {row.num_src}:{row.num_dst}"),
        Column("how", _how_text),
        Column("rows"),
        Column("copied", "local_rows"),
        *((Column("size", "bytes", bytes_text),) if has_sizes else ()),
        Column("", _notes_text),
    )
    return Table(columns, rows)


def _how_text(row: BridgeRow) -> str:
    return row.how + (f", {row.group_size} microbatches at once" if row.group_size > 1 else "")


def _notes_text(row: BridgeRow) -> str:
    notes = [] if row.has_backward else ["forward only"]
    if row.sharing > 1:
        notes.append(f"balanced over {row.sharing} replicas")
    if 2 * row.crossing_rows > row.rows:
        notes.append(f"{percent(row.crossing_rows / row.rows)} of rows cross nodes")
    return ", ".join(notes)


def link_table(bridge: BridgeRow, most: int) -> Table:
    """Return a row for each of the first `most` ranks that send rows over a bridge."""
    sent: dict[int, list[str]] = {}
    for link in bridge.links:
        copied = " copied" * (link.src == link.dst)
        sent.setdefault(link.src, []).append(f"{link.dst}: {link.rows}{copied}")
    to = "" if bridge.target is None else f"{bridge.target} "
    names = (f"{bridge.source or bridge.encoder} rank", f"sends to {to}rank: rows")
    shown = list(sent.items())[:most]
    return Table.of_cells(names, [(src, some(to, MAX_RECEIVERS, sep=", ")) for src, to in shown])


def loss_table(rows: Sequence[LossRow]) -> Table:
    """Return a row per loss."""

    def unit(row: LossRow) -> str:
        # The losses of further tokens are called `language.mtp`.
        return "labels" if row.module.partition(".")[0] == LANGUAGE else "patches"

    weight = Column("weight", text="{:g}".format)
    return Table((Column("module"), weight, Column("terms"), Column("", unit)), rows)


def sample_table(rows: Sequence[SampleRow]) -> Table:
    """Return a row per forward of a rank, with its samples."""

    def text(ranges: Sequence[tuple[int, int]]) -> str:
        return some(ranges, MAX_RECEIVERS, sep=", ", text=lambda ends: span_text(*ends))

    index, samples = Column("group or microbatch", "index"), Column("samples", "ranges", text)
    columns = [Column("module"), index, samples]
    if any(row.split for row in rows):
        columns.append(Column("only some images of", "split", text))
    return Table(tuple(columns), rows)


def peer_table(rows: Sequence[PeerRow]) -> Table:
    """Return a row for each rank with which a rank exchanges rows over a bridge."""
    words = {"send": "sends to", "receive": "receives from", "copy": "copies within"}
    columns = (
        Column("bridge", text=lambda name: name.replace(">", " -> ")),
        Column("", "way", words.__getitem__),
        Column("rank", "peer"),
        Column("rows", text=lambda by_group: str(sum(by_group))),
        Column("by group", "rows", lambda by_group: some(by_group, MAX_GROUPS, sep=", ")),
    )
    return Table(columns, rows)


def not_counted(estimates: Estimates) -> Iterator[str]:
    """Yield what the estimates leave out, module by module."""
    for module, left_out in estimates.not_counted.items():
        hint = "" if "weights" not in left_out else "; `parameters` in its model would count more"
        yield f"Not counted of the layers of {module}: {', '.join(left_out)}{hint}"


def memory_table(estimates: Estimates) -> Table:
    """Return the memory of each group of similar ranks, marked if it is more than a GPU has."""
    limit, rows = estimates.gpu_memory, estimates.ranks
    of = f" of {bytes_text(limit)}" if limit else ""
    parts = [Column(name, f"memory.parts.{name}", bytes_text) for name in rows[0].memory.parts]
    if any(row.memory.host for row in rows):
        parts.append(Column("on the host", "memory.host", bytes_text))
    columns = (_RANKS, _HOLDS, Column(f"memory{of}", "total_bytes", bytes_text), *parts)
    marked = (number for number, row in enumerate(rows) if limit and row.total_bytes > limit)
    return Table(columns, rows, frozenset(marked))


def work_table(estimates: Estimates) -> Table:
    """Return the work of each group of similar ranks, and the shares of their time."""
    # All-to-alls, for experts on several ranks, are part of the computing time.
    travels = any(row.all_to_all for row in estimates.ranks)
    columns = (
        *(_RANKS, _HOLDS, _PARAMETERS, _WORK),
        Column("computes", lambda row: row.computing - row.all_to_all, percent),
        *((Column("all-to-all", "all_to_all", percent),) if travels else ()),
        Column("waits", "waiting", percent),
        Column("reduces", "reducing", percent),
        Column("updates", "updating", percent),
    )
    return Table(columns, estimates.ranks)


def stage_estimate_table(row: RankEstimate) -> Table:
    """Return the stages of one rank, with the times of their actions."""
    columns = (
        Column("stage", lambda each: f"{each.module}.{each.stage}"),
        Column("parameters", text="{:,}".format),
        Column("trained", "trained_parameters", "{:,}".format),
        _WORK,
        Column("forward", "forward_ms", lambda time: seconds_text(time / 1000)),
        Column("backward", "backward_ms", lambda time: seconds_text(time / 1000)),
    )
    return Table(columns, row.stages)
