"""Charts as elements of a page, as an SVG file, and as a PNG image.

Decides: a file has two charts beside each other on white, and a legend of all below.
Relies on: `charts` for everything that is drawn; Pillow, if an image is asked for.
Leaves: the page to the caller, which adds `CHART_STYLE` to it.
"""

from collections.abc import Iterator, Sequence
from io import BytesIO
from math import dist
from typing import TYPE_CHECKING

from mimo_launch.diag.frozen import frozen
from mimo_launch.drawing.charts import (
    CHAR,
    FONT,
    HEIGHT,
    INK,
    WIDTH,
    Chart,
    Dash,
    Dot,
    Look,
    PlacedChart,
    Point,
    Shape,
    Stop,
    Stroke,
    Words,
    legend_of,
)
from mimo_launch.drawing.html_page import html_text, px

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

CHART_STYLE = (
    ".stop { outline: none; } .stop .said { visibility: hidden; pointer-events: none; } "
    ".stop:is(:hover, :focus) .said { visibility: visible; }"
)
_FAMILY = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
_DARK = "#222222"
# Pixels of an image for one of a drawing, and how many times finer it is drawn.
_SCALE, _FINER = 1.4, 2
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


def chart_element(chart: Chart) -> str:
    """Return a chart as an SVG element, which takes the colours of its page."""
    drawing = PlacedChart(chart)
    return "\n".join(
        (
            f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" font-family="{_FAMILY}">',
            *map(_svg, drawing.shapes()),
            *(_stop(stop, drawing) for stop in drawing.stops()),
            "</svg>",
        )
    )


def charts_svg(charts: Sequence[Chart], legend: dict[str, Look]) -> str:
    """Return charts as an SVG file."""
    sheet = _Sheet.of(charts, legend)
    size = f'width="{sheet.width:g}" height="{sheet.height:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {sheet.width:g} '
        f'{sheet.height:g}" color="{_DARK}" font-family="{_FAMILY}">',
        f"<style>{CHART_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    each = f'width="{WIDTH:g}" height="{HEIGHT:g}"'
    for (x, y), chart in sheet.places:
        parts.append(chart_element(chart).replace("<svg", f'<svg x="{x:g}" y="{y:g}" {each}', 1))
    parts += [*map(_svg, sheet.legend), "</svg>"]
    return "\n".join(parts) + "\n"


def charts_png(charts: Sequence[Chart], legend: dict[str, Look]) -> bytes:
    """Return charts as an image."""
    from PIL import Image, ImageDraw

    sheet, fine = _Sheet.of(charts, legend), _SCALE * _FINER
    size = round(sheet.width * _SCALE), round(sheet.height * _SCALE)
    image = Image.new("RGB", (size[0] * _FINER, size[1] * _FINER), "#ffffff")
    pen = ImageDraw.Draw(image)
    for at, chart in sheet.places:
        for shape in PlacedChart(chart).shapes():
            _paint(shape, at, fine, pen)
    for shape in sheet.legend:
        _paint(shape, (0.0, 0.0), fine, pen)
    buffer = BytesIO()
    image.resize(size, Image.Resampling.LANCZOS).save(buffer, format="PNG")
    return buffer.getvalue()


@frozen
class _Sheet:
    """The places of charts on a sheet, and the legend below them."""

    places: tuple[tuple[Point, Chart], ...]
    legend: tuple[Shape, ...]
    width: float
    height: float

    @classmethod
    def of(cls, charts: Sequence[Chart], legend: dict[str, Look]) -> "_Sheet":
        """Return the sheet of some charts."""
        places = [((n % 2 * WIDTH, n // 2 * HEIGHT), chart) for n, chart in enumerate(charts)]
        width, height = 2 * WIDTH, (len(charts) + 1) // 2 * HEIGHT
        shapes, bottom = legend_of(legend, height + 20, width)
        return cls(tuple(places), shapes, width, bottom + 12 if legend else height)


def _svg(shape: Shape) -> str:
    match shape:
        case Words():
            at = f'x="{px(shape.at[0])}" y="{px(shape.at[1])}"'
            look = f'font-size="{shape.size:g}" text-anchor="{shape.anchor}" fill="{INK}"'
            return f"<text {at} {look}>{html_text(shape.text)}</text>"
        case Dot():
            at = f'cx="{px(shape.at[0])}" cy="{px(shape.at[1])}"'
            return f'<circle {at} r="{shape.radius:g}" fill="{shape.color}"/>'
        case Stroke():
            path = "L".join(f"{px(x)} {px(y)}" for x, y in shape.points)
            look = f'stroke="{shape.color}" stroke-width="{shape.width:g}"'
            look += f' stroke-dasharray="{" ".join(map(str, shape.dash))}"' * bool(shape.dash)
            look += f' opacity="{shape.opacity:g}"' * (shape.opacity < 1)
            return f'<path d="M{path}" fill="none" {look}/>'


def _stop(stop: Stop, drawing: PlacedChart) -> str:
    """Return a band of a plot that shows its values while a reader points at it."""
    top, tall = px(drawing.top), px(drawing.bottom - drawing.top)
    band = f'x="{px(stop.left)}" y="{top}" width="{px(stop.right - stop.left)}"'
    # The values are on the side of the plot with more room.
    wide = max(map(len, stop.text)) * FONT * CHAR + 12
    is_left = stop.x < (drawing.left + drawing.right) / 2
    x = min(stop.x + 6, WIDTH - wide) if is_left else max(stop.x - 6 - wide, 0.0)
    lines = "".join(
        f'<tspan x="{px(x + 6)}" dy="{FONT * 1.3:g}">{html_text(line)}</tspan>'
        for line in stop.text
    )
    box = f'width="{px(wide)}" height="{px(len(stop.text) * FONT * 1.3 + 8)}"'
    return (
        f'<g class="stop" tabindex="-1"><rect {band} height="{tall}" fill="none" '
        'pointer-events="all"/><g class="said" visibility="hidden">'
        f'<path d="M{px(stop.x)} {top}v{tall}" stroke="{INK}" stroke-width="0.6"/>'
        f'<rect x="{px(x)}" y="{top}" {box} rx="3" fill="Canvas" stroke="{INK}" '
        f'stroke-width="0.4"/><text y="{px(drawing.top + 1)}" font-size="{FONT:g}" '
        f'fill="{INK}">{lines}</text></g></g>'
    )


def _paint(shape: Shape, offset: Point, fine: float, pen: "ImageDraw") -> None:
    """Draw a shape on a white image, `fine` pixels for one of the drawing."""
    from PIL import ImageFont

    def place(point: Point) -> Point:
        return (point[0] + offset[0]) * fine, (point[1] + offset[1]) * fine

    match shape:
        case Words():
            font = ImageFont.load_default(shape.size * fine)
            pen.text(place(shape.at), shape.text, _DARK, font, anchor=_ANCHORS[shape.anchor])
        case Dot():
            pen.circle(place(shape.at), shape.radius * fine, fill=shape.color)
        case Stroke():
            color = _on_white(shape.color, shape.opacity)
            for part in _dashes(shape):
                points = [place(point) for point in part]
                pen.line(points, color, max(1, round(shape.width * fine)), joint="curve")


def _on_white(color: str, opacity: float) -> tuple[int, int, int]:
    """Return the colour that a reader sees on white."""
    digits = (_DARK if color == INK else color).lstrip("#")
    red, green, blue = (
        round(255 - opacity * (255 - int(digits[n : n + 2], 16))) for n in (0, 2, 4)
    )
    return red, green, blue


def _dashes(stroke: Stroke) -> Iterator[tuple[Point, ...]]:
    """Yield the strokes of a dashed line; a solid one is a single stroke."""
    if not stroke.dash:
        yield stroke.points
        return
    lengths: Dash = stroke.dash
    number, left, part = 0, lengths[0], [stroke.points[0]]
    for end in stroke.points[1:]:
        while (room := dist(part[-1], end)) > left:
            share = left / room
            at = tuple(a + (b - a) * share for a, b in zip(part[-1], end, strict=True))
            cut = (at[0], at[1])
            if number % 2 == 0:
                yield (*part, cut)
            number, part = number + 1, [cut]
            left = lengths[number % len(lengths)]
        left -= room
        part = [*part, end] if number % 2 == 0 else [end]
    if number % 2 == 0 and len(part) > 1:
        yield tuple(part)
