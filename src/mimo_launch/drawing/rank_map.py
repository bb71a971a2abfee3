"""The hosts of a plan with their ranks as a picture on a page, with the partners of each rank.

Decides: how ranks look, and the text about the rank that a reader points at or taps; all of it with
style sheets, without a script.
Relies on: `rank_cells` for the cells, `html_page` for the colours of modules.
Leaves: the rest of the page to `plan_page`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from mimo_launch.diag.quantities import (
    bytes_text,
    coords_text,
    counted,
    named_ranks,
    percent,
    ranks_text,
    role_text,
    span_text,
)
from mimo_launch.drawing.answer_text import PARTS
from mimo_launch.drawing.html_page import colors, html_key, html_prose, html_table, html_text
from mimo_launch.drawing.rank_cells import COPIES, SENDS, DrawnClass, RankCell, RankCells, Traffic
from mimo_launch.drawing.table import Table
from mimo_launch.search.wastes import SHARES
from mimo_launch.spec.base import Axis

# Beyond this many different kinds of hosts, the rest are only counted.
MAX_HOSTS = 64
# Outlines of the ranks of a group, by its axes; later ones are drawn on top.
_OUTLINES = {
    "dp x cp": ("#2b8a3e", "dashed"),
    Axis.DP: ("#2b8a3e", "dashed"),
    Axis.EXPERT_DP: ("#1098ad", "dashed"),
    Axis.PP: ("#7048e8", "dotted"),
    Axis.CP: ("#e8590c", "solid"),
    Axis.EP: ("#e64980", "double"),
    Axis.EXPERT_TP: ("#9775fa", "double"),
    Axis.TP: ("#1c7ed6", "solid"),
}
# Edges of the ranks with which a rank exchanges rows over a bridge.
_PARTNER = "box-shadow:inset 0 -4px #c92a2a,inset 0 4px #c92a2a"

STYLE = """\
.key { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .5rem 0; }
.key i { display: inline-block; width: 1.1rem; height: .8rem; margin-right: .4rem; }
.hosts { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.host > p { margin: 0 0 .2rem; font-size: .85rem; max-width: 22rem; }
.ranks { display: flex; flex-wrap: wrap; gap: 6px; max-width: 22rem; }
.cell { min-width: 2.3rem; max-width: 7rem; min-height: 2.1rem; padding: .1rem .3rem;
        border-radius: 4px; color: #1f2328; cursor: default; text-align: center;
        font-size: .85rem; line-height: 1.1; outline-offset: 1px; box-sizing: border-box;
        display: flex; flex-direction: column; align-items: center; justify-content: center; }
.cell small { font-size: .65rem; }
.idle { border: 1px dashed #8888; color: inherit; }
.cell:hover, .cell:focus { outline: 3px solid CanvasText; }
.abouts { position: fixed; left: 0; right: 0; bottom: 0; z-index: 1; pointer-events: none;
          display: flex; justify-content: center; }
.about { display: none; background: Canvas; border: 1px solid #8888; padding: .5rem 1rem;
         border-radius: 8px 8px 0 0; box-shadow: 0 0 12px #0006; max-width: 44rem;
         overflow-wrap: anywhere; font-size: .85rem; line-height: 1.35; }
.about p { margin: .1rem 0; }
@supports not selector(:has(a)) { .abouts, .about { position: static; display: block; } }
"""


def class_table(cells: RankCells) -> str:
    """Return a table with a row for each class of ranks that are alike."""
    columns = ("class", "ranks", "number", "holds", "memory", *PARTS.values(), "bubble")
    rows = [
        (str(number), ranks_text(kind.ranks), f"{len(kind.ranks):,}", *_figures(kind))
        for number, kind in enumerate(cells.classes)
    ]
    # Where cells are ranks, cell numbers are rank numbers.
    start = 0 if cells.has_classes else 1
    return html_table(Table.of_cells(columns[start:], [row[start:] for row in rows]))


def _figures(kind: DrawnClass) -> tuple[str, ...]:
    estimate, held = kind.estimate, role_text(kind.timeline.role)
    if estimate is None:
        return (held, *("",) * (len(PARTS) + 2))
    shares = (percent(SHARES[part](estimate)) for part in PARTS)
    # The bubble in estimated time, as in the title; the timeline of a report is in model units.
    bubble = percent(estimate.bubble)
    return (held, bytes_text(estimate.total_bytes), *shares, bubble)


def map_style(cells: RankCells, modules: Sequence[str]) -> str:
    """Return CSS: the colours of the cells, and the effects when a reader points at one."""
    rules = [STYLE]
    for number, cell in enumerate(cells.cells):
        held = dict.fromkeys(part.rpartition(".")[0] for part in cell.kind.timeline.role)
        if held:
            shades = [colors(modules.index(module))[0] for module in held]
            size = 100 / len(shades)
            stripes = ",".join(
                f"{c} {i * size:.4g}% {(i + 1) * size:.4g}%" for i, c in enumerate(shades)
            )
            rules.append(f".u{number}{{background:linear-gradient(90deg,{stripes})}}")
        rules.append(f".map:has({_pointed([number])}) .a{number}{{display:block}}")
    # The cells that exchange rows with a cell over bridges.
    partners: defaultdict[frozenset[int], list[int]] = defaultdict(list)
    for number, cell in enumerate(cells.cells):
        met = {other for each in cell.traffic if each.is_bridge for other in each.amounts}
        if met - {number}:
            partners[frozenset(met - {number})].append(number)
    rules.extend(
        f".map:has({_pointed(pointed)}) {_any('u', met)}{{{_PARTNER}}}"
        for met, pointed in partners.items()
    )
    by_axes = _cells_by_group(cells)
    for axes, (color, line) in _OUTLINES.items():
        rules.extend(
            f".map:has({_pointed(pointed)}) {_any('u', met)}:not(:hover,:focus)"
            f"{{outline:3px {line} {color}}}"
            for met, pointed in by_axes.get(axes, {}).items()
        )
    return "\n".join(rules)


def _any(letter: str, numbers: Iterable[int]) -> str:
    return f":is({','.join(f'.{letter}{number}' for number in sorted(numbers))})"


def _pointed(numbers: Iterable[int]) -> str:
    return f"{_any('u', numbers)}:is(:hover,:focus)"


def _cells_by_group(cells: RankCells) -> dict[str, dict[frozenset[int], list[int]]]:
    """Return, by axes and by the cells of a group, the cells that belong to that group.

    Groups within one class are left out.
    """
    found: dict[str, dict[frozenset[int], list[int]]] = {}
    for number, cell in enumerate(cells.cells):
        for group in cell.groups:
            met = cells.met_by(group)
            if len(met) > 1:
                found.setdefault(" x ".join(group.axes), {}).setdefault(met, []).append(number)
    return found


def map_legend(cells: RankCells, modules: Sequence[str]) -> str:
    """Return a legend of colours and outlines."""
    keys = [(f"background:{colors(i)[0]}", module) for i, module in enumerate(modules)]
    used = _cells_by_group(cells)
    keys += [
        (f"outline:3px {line} {color};outline-offset:-3px", f"{name} group")
        for name, (color, line) in _OUTLINES.items()
        if name in used
    ]
    if any(each.is_bridge for cell in cells.cells for each in cell.traffic):
        keys.append((_PARTNER, "rows over a bridge"))
    return html_key(keys)


def rank_map(cells: RankCells) -> str:
    """Return hosts with their ranks, and the text about each rank or class."""
    parts = ['<div class="map">', '<div class="hosts">']
    for row in cells.hosts[:MAX_HOSTS]:
        hosts = ranks_text(row.hosts).replace(" ranks)", " hosts)")
        parts += _host(f"host{'s' * (len(row.hosts) > 1)} {hosts}", row.cells, cells)
    if not cells.hosts:
        name = "all ranks; `nodes: {gpus: 8}` in the spec shows hosts"
        parts += _host(name, range(len(cells.cells)), cells)
    parts.append("</div>")
    more = len(cells.hosts) - MAX_HOSTS
    if more > 0:
        parts.append(f"<p>and hosts that are filled in {more:,} more ways</p>")
    parts.append('<div class="abouts">')
    parts += [
        f'<div class="about a{number}">{"".join(_about(cell, cells))}</div>'
        for number, cell in enumerate(cells.cells)
    ]
    parts += ["</div>", "</div>"]
    return "\n".join(parts)


def _host(name: str, numbers: Iterable[int], cells: RankCells) -> Iterator[str]:
    yield f'<div class="host"><p>{html_prose(name)}</p><div class="ranks">'
    for number in numbers:
        cell = cells.cells[number]
        role = cell.kind.timeline.role
        stages = ", ".join(dict.fromkeys(part.rpartition(".")[2] for part in role))
        shown = f"<small>{stages}</small>" if stages.strip("0") else ""
        idle = "" if role else " idle"
        label = html_text(f"{_name(cell, cells)}: {role_text(role)}")
        yield (
            f'<span class="cell u{number}{idle}" tabindex="0" role="img" aria-label="{label}">'
            f"{number}{shown}</span>"
        )
    yield "</div></div>"


def _name(cell: RankCell, cells: RankCells) -> str:
    if not cells.has_classes:
        return f"rank {cell.ranks[0]}"
    return f"class {cells.cell_of[cell.ranks[0]]}, {named_ranks(cell.ranks)}"


def _about(cell: RankCell, cells: RankCells) -> Iterator[str]:
    """Yield the text about a rank, or about the first rank of a class."""
    is_one = len(cell.ranks) == 1
    host = "" if cell.row.node is None or not is_one else f", host {cell.row.node}"
    yield f"<p><b>{html_text(_name(cell, cells) + host)}</b></p>"
    held = []
    for each in cell.row.modules:
        where = f" at (tp, cp, dp, pp) {coords_text(each.coords)}" if is_one else ""
        layers = span_text(each.first_layer, each.last_layer)
        runs = f"{counted(each.samples, 'sample')} in {counted(each.groups, 'forward')}"
        held.append(f"{each.module} stage {each.stage}{where}: layers {layers}, {runs}")
    names = ("memory", *PARTS.values(), "bubble")
    figures = zip(names, _figures(cell.kind)[1:], strict=True)
    facts = ", ".join(f"{name} {figure}" for name, figure in figures if figure)
    for line in (*(held or ["idle"]), facts):
        yield f"<p>{html_text(line)}</p>" if line else ""
    groups = "; ".join(
        f"{row.module} {' x '.join(row.axes)}: {ranks_text(row.groups[0])}" for row in cell.groups
    )
    if groups:
        whose = "" if is_one else f" of rank {cell.ranks[0]}"
        yield f"<p><b>Groups{whose}.</b> {html_text(groups)}</p>"
    if cell.traffic:
        moved = "; ".join(
            f"{edge}: {', '.join(_moved(traffic, cells) for traffic in of_edge)}"
            for edge, of_edge in groupby(cell.traffic, key=lambda each: each.edge)
        )
        yield f"<p><b>Traffic of a step.</b> {html_text(moved)}</p>"


def _moved(traffic: Traffic, cells: RankCells) -> str:
    amount = f"{traffic.way} {sum(traffic.amounts.values()):,} {traffic.unit}"
    if traffic.way == COPIES:
        return amount
    peers = sorted(rank for other in traffic.amounts for rank in cells.cells[other].ranks)
    return f"{amount} {'to' if traffic.way == SENDS else 'from'} {named_ranks(peers)}"
