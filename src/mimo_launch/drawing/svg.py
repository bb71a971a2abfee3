"""A timeline as a self-contained SVG picture: no script, no font file, no external style sheet.

Decides: how a step looks; every span is one element of class `box` or `mark`.
Relies on: `svg_layout` for rows and sizes, `html_page` for the colours.
Leaves: the file to the caller.
"""

from collections.abc import Iterator, Sequence

from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import counted, percent
from mimo_launch.drawing.html_page import colors, html_text, px
from mimo_launch.drawing.spans import Span, Timeline, Unit, describe
from mimo_launch.drawing.svg_layout import (
    Row,
    Sizes,
    axis_unit,
    digits_width,
    mean_bubble,
    rows_of,
    sizes_of,
    text_width,
    ticks_of,
)
from mimo_launch.schedule.actions import Kind

INK, DIM, IDLE, MARK = "#1f2328", "#59636e", "#e4e7ea", "#6b7580"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
MARGIN, BUBBLE_WIDTH, LEGEND_FONT, SWATCH, LINE = 16.0, 76.0, 12.0, 20.0, 20.0
TICKS_HEIGHT, NAME_FONT, FACTS_FONT = 28.0, 18, 13
# Transfers are drawn along the lower edge of a row; boxes end above them.
MARK_HEIGHT, LEAST_MARK, GAP = 2.5, 1.2, 3.5
# The second stage of a module on one rank is drawn lower than the first, and so on.
DOWN, MAX_DOWN = 2.0, 4.0
# The x, y, width and height of a box.
Rectangle = tuple[float, float, float, float]
HEADINGS = {
    Unit.MODEL: "planned step",
    Unit.ESTIMATED: "planned step, estimated",
    Unit.SECONDS: "measured",
}


def render_svg(
    timeline: Timeline, *, name: str, plan_hash: str, rank: int | None = None, device: str = ""
) -> str:
    """Return the picture of a timeline; with `rank`, of that rank only, on the same time axis.

    `device` is the device for which times are estimated.
    """
    rows, left_out = rows_of(timeline, rank)
    # The width does not depend on the top, so wrap the legend to it first.
    free = sizes_of(timeline, rows, 0.0)
    facts = _facts(timeline, plan_hash, left_out, device)
    full = max(
        free.left + free.width + BUBBLE_WIDTH + MARGIN,
        MARGIN + text_width(name, NAME_FONT) + MARGIN,
        MARGIN + text_width(facts, FACTS_FONT) + MARGIN,
    )
    legend, legend_bottom = _legend(timeline, rows, full)
    sizes = sizes_of(timeline, rows, legend_bottom + 34)
    picture = _Picture(timeline, rows, sizes, timeline.modules)
    height = sizes.bottom + 46
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{px(full)}" height="{px(height)}" '
        f'viewBox="0 0 {px(full)} {px(height)}" font-family="{FONT}">',
        f"<title>{html_text(name)}</title>",
        *picture.defs(),
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        *_heading(name, facts),
        *legend,
        *picture.body(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def figure(
    timeline: Timeline, rows: tuple[Row, ...], modules: Sequence[str], *, plain: bool = False
) -> str:
    """Return rows of a timeline as an element of a page, without heading, legend and background.

    `modules` defines the colours; the rows may lack some of the modules. `plain` boxes have neither
    numbers nor words, and all boxes of one colour in a row are one element.
    """
    sizes = sizes_of(timeline, rows, TICKS_HEIGHT)
    picture = _Picture(timeline, rows, sizes, modules, is_plain=plain)
    full, height = sizes.left + sizes.width + BUBBLE_WIDTH, sizes.bottom + 46
    parts = [
        f'<svg width="{px(full)}" height="{px(height)}" font-family="{FONT}">',
        *picture.defs(),
        *picture.body(),
        "</svg>",
    ]
    return "\n".join(parts)


def _facts(timeline: Timeline, plan_hash: str, left_out: str, device: str) -> str:
    word, factor = axis_unit(timeline)
    facts = [
        HEADINGS[timeline.unit] + f" for {device}" * bool(device),
        f"plan {plan_hash}",
        counted(timeline.num_ranks, "rank"),
        f"makespan {timeline.makespan * factor:.6g} {word}",
        f"{timeline.unit.idle} {percent(mean_bubble(timeline))}",
        left_out,
    ]
    return " \u00b7 ".join(fact for fact in facts if fact)


def _heading(name: str, facts: str) -> Iterator[str]:
    at = f'x="{px(MARGIN)}"'
    yield (
        f'<text class="t" {at} y="28" font-size="{NAME_FONT}" font-weight="600">'
        f"{html_text(name)}</text>"
    )
    yield f'<text class="d" {at} y="48" font-size="{FACTS_FONT}">{html_text(facts)}</text>'


def _legend(timeline: Timeline, rows: tuple[Row, ...], full: float) -> tuple[list[str], float]:
    """Return the legend, wrapped at the width `full`, and the y at which it ends."""
    # The CSS class and the meaning of each entry.
    keys = []
    seen = {(s.action.module, s.action.kind) for row in rows for s in row.spans}
    for number, module in enumerate(timeline.modules):
        for kind, word in ((Kind.FORWARD, "forward"), (Kind.BACKWARD, "backward")):
            if (module, kind) in seen:
                keys.append((f"{kind.value.lower()}{number}", f"{module} {word}"))
    keys.append(("idle", "idle" if timeline.unit is Unit.MODEL else "idle (bubble)"))
    if any(not kind.is_compute for _, kind in seen):
        keys.append(("mark", "transfer, with the wait for it"))
    keys.append(("", "number: microbatch of language, group of an encoder"))
    if any(row.has_chunks for row in rows):
        several = "2.1: number 2 on stage 1, where a rank has several; later stages are lower"
        keys.append(("", several))
    lines, x, y = [], MARGIN, 72.0
    for style, words in keys:
        swatch = SWATCH + 6 if style else 0.0
        width = swatch + text_width(words, LEGEND_FONT) + 18
        if x > MARGIN and x + width > full - MARGIN:
            x, y = MARGIN, y + LINE
        if style == "idle":
            lines.append(_rect(x, y - 11, SWATCH, 14, f'fill="{IDLE}"'))
        elif style == "mark":
            lines.append(_rect(x, y - 6, SWATCH, MARK_HEIGHT, f'fill="{MARK}"'))
        elif style:
            lines.append(_rect(x, y - 11, SWATCH, 14, f'class="{style}"'))
        lines.append(
            f'<text class="t" x="{px(x + swatch)}" y="{px(y)}" font-size="{px(LEGEND_FONT)}">'
            f"{html_text(words)}</text>"
        )
        x += width
    return lines, y


def _rect(x: float, y: float, width: float, height: float, rest: str) -> str:
    return f'<rect x="{px(x)}" y="{px(y)}" width="{px(width)}" height="{px(height)}" {rest}/>'


@frozen
class _Picture:
    """Rows of a timeline at their sizes, in the colours of some modules."""

    timeline: Timeline
    rows: tuple[Row, ...]
    sizes: Sizes
    modules: Sequence[str]
    is_plain: bool = False

    def defs(self) -> Iterator[str]:
        """Yield the colours of the modules."""
        yield "<defs>"
        rules = [
            f".t{{fill:{INK}}}.d{{fill:{DIM}}}.n{{font-weight:600;text-anchor:middle}}",
            f".f{{fill:{INK}}}.b{{fill:#fff}}.mark{{fill:{MARK}}}.e{{text-anchor:end}}",
        ]
        for number, _ in enumerate(self.modules):
            light, dark = colors(number)
            rules.append(f".f{number}{{fill:{light}}}.b{number}{{fill:url(#h{number})}}")
            yield (
                f'<pattern id="h{number}" width="5" height="5" patternUnits="userSpaceOnUse" '
                f'patternTransform="rotate(45)"><rect width="5" height="5" fill="{dark}"/>'
                '<rect width="1" height="5" fill="#fff" fill-opacity="0.22"/></pattern>'
            )
        yield f"<style>{''.join(rules)}</style>"
        yield "</defs>"

    def body(self) -> Iterator[str]:
        """Yield the rows with their names, bubbles and spans, over the axis of time."""
        yield from self._backgrounds()
        yield from self._axis()
        yield from self._spans()

    def _backgrounds(self) -> Iterator[str]:
        """Yield the name of each row, its bubble, and the background that shows idle time."""
        sizes, unit = self.sizes, self.timeline.unit
        font = f'font-size="{px(sizes.font)}"'
        right = sizes.left + sizes.width + BUBBLE_WIDTH - 8
        yield f'<text class="d e" x="{px(right)}" y="{px(sizes.top - 8)}" {font}>{unit.idle}</text>'
        yield f'<text class="d" x="{px(MARGIN)}" y="{px(sizes.top - 8)}" {font}>rank</text>'
        for row, top in zip(self.rows, sizes.tops, strict=True):
            y = px(top + sizes.row / 2 + sizes.font * 0.36)
            share = percent(row.bubble) if row.role else ""
            yield f'<text class="t" x="{px(MARGIN)}" y="{y}" {font}>{html_text(row.label)}</text>'
            yield f'<text class="d e" x="{px(right)}" y="{y}" {font}>{share}</text>'
            yield _rect(sizes.left, top, sizes.width, sizes.row, f'class="ground" fill="{IDLE}"')

    def _axis(self) -> Iterator[str]:
        """Yield vertical lines at round times, labelled above and below the rows."""
        sizes = self.sizes
        font = 'font-size="11" text-anchor="middle"'
        for time, label in ticks_of(self.timeline, sizes):
            x = px(sizes.x(time))
            yield (
                f'<path d="M{x} {px(sizes.top - 4)}V{px(sizes.bottom + 4)}" '
                f'stroke="#c8cdd3" stroke-width="1"/>'
            )
            for y in (sizes.top - 8, sizes.bottom + 16):
                yield f'<text class="d" x="{x}" y="{px(y)}" {font}>{label}</text>'
        middle, below = sizes.left + sizes.width / 2, sizes.bottom + 34
        words = f"time in {axis_unit(self.timeline)[0]}"
        yield f'<text class="d" x="{px(middle)}" y="{px(below)}" {font}>{words}</text>'

    def _spans(self) -> Iterator[str]:
        """Yield the spans of all rows: in each, transfers first, so that they hide no box."""
        sizes = self.sizes
        for row, top in zip(self.rows, sizes.tops, strict=True):
            for span in row.spans:
                if not span.is_compute:
                    width = max(LEAST_MARK, sizes.scale * (span.stop - span.start))
                    # A transfer at the very end stays inside the axis.
                    x = min(sizes.x(span.start), sizes.left + sizes.width - width)
                    y = top + sizes.row - MARK_HEIGHT
                    shape = (
                        f'x="{px(x)}" y="{px(y)}" width="{px(width)}" height="{px(MARK_HEIGHT)}"'
                    )
                    yield f'<rect class="mark" {shape}><title>{_hover(span)}</title></rect>'
            boxes = [(span, self._place(span, row, top)) for span in row.spans if span.is_compute]
            if self.is_plain:
                yield from self._paths(boxes)
            else:
                for span, place in boxes:
                    yield from self._box(span, row, place)

    def _place(self, span: Span, row: Row, top: float) -> Rectangle:
        """Return the x, y, width and height of a box."""
        stages = row.stages_of(span.action.module)
        down = min(MAX_DOWN, DOWN * stages.index(span.action.stage or 0))
        width = self.sizes.scale * (span.stop - span.start)
        # A hairline of background separates adjacent boxes.
        drawn = width - 1 if width > 4 else width
        return self.sizes.x(span.start), top + down, drawn, self.sizes.row - GAP - down

    def _color(self, span: Span) -> str:
        return f"{span.action.kind.value.lower()}{self.modules.index(span.action.module)}"

    def _paths(self, boxes: Sequence[tuple[Span, Rectangle]]) -> Iterator[str]:
        """Yield the boxes of each colour as one path."""
        found: dict[str, list[str]] = {}
        for span, (x, y, width, height) in boxes:
            path = f"M{px(x)} {px(y)}h{px(width)}v{px(height)}h{px(-width)}z"
            found.setdefault(self._color(span), []).append(path)
        for color, paths in found.items():
            yield f'<path class="box {color}" d="{"".join(paths)}"/>'

    def _box(self, span: Span, row: Row, place: Rectangle) -> Iterator[str]:
        """Yield a box with its words, and its number if there is room."""
        (x, y, width, height), font = place, self.sizes.font
        shape = f'x="{px(x)}" y="{px(y)}" width="{px(width)}" height="{px(height)}"'
        words = f"<title>{_hover(span)}</title>"
        yield f'<rect class="box {self._color(span)}" {shape}>{words}</rect>'
        for label in row.labels_of(span.action):
            if digits_width(label, font) + 3 <= width:
                base = y + height / 2 + font * 0.36
                at = f'x="{px(x + width / 2)}" y="{px(base)}" font-size="{px(font)}"'
                yield f'<text class="n {span.action.kind.value.lower()}" {at}>{label}</text>'
                return


def _hover(span: Span) -> str:
    return html_text(f"{describe(span.action)}, {span.start:.6g} to {span.stop:.6g}")
