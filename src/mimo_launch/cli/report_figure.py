"""Draws runs: loss, gradient norms, learning rates and throughput over the steps.

Decides: the panels and their colours. A run has the same colour in all panels, a module the same
dash style; a single run has a colour per module instead.
Relies on: matplotlib, without its global state; `train.history` for curves.
Leaves: the page around the drawing to `report`.
"""

import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mimo_launch.train.history import Curve, History, moving_average, thinned

# Colours that are distinct on white and on black.
COLORS = (
    "#1f77b4", "#e07b1a", "#2ca02c", "#d9483b", "#9467bd",
    "#a0705f", "#d765b3", "#7f8c8d", "#a8a01d", "#17a5b8",
)  # fmt: skip
DASHES = ("-", "--", ":", "-.")
MOST_POINTS = 1500
# A placeholder for the colour of text, which the page decides.
_INK = "#010203"
_STYLE = {
    "text.parse_math": False,  # A `$` in a name is a dollar sign.
    "svg.fonttype": "none",
    "svg.hashsalt": "mimo-launch",
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


@dataclass(frozen=True, slots=True)
class Charts:
    """The panels of some runs; curves are averaged over `smooth` steps."""

    runs: Sequence[History]
    smooth: int

    def png(self) -> bytes:
        """Return all panels as an image."""
        with _style("#222222"):
            return _saved(self.sheet(), format="png", dpi=110, facecolor="white")

    def svg(self) -> str:
        """Return all panels as the text of an SVG file."""
        with _style("#222222"):
            raw = _saved(self.sheet(), format="svg", metadata=_NO_METADATA, facecolor="white")
        # Viewers must not fetch the DTD.
        return re.sub(r"<!DOCTYPE.*?>\n", "", raw.decode("utf-8"), flags=re.DOTALL)

    def elements(self) -> list[str]:
        """Return each panel as an SVG element, which inherits the colours of its page."""
        from matplotlib.figure import Figure

        elements = []
        with _style(_INK):
            for panel in self.panels:
                figure = Figure(figsize=(4.6, 3.1), layout="constrained")
                panel(figure.subplots())
                raw = _saved(figure, format="svg", metadata=_NO_METADATA, transparent=True)
                text = raw.decode("utf-8").replace(_INK, "currentColor")
                # Remove the ids of groups: every panel repeats them, and nothing refers to them.
                elements.append(re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :]))
        return elements

    def sheet(self) -> Any:
        """Return the figure of all panels, with a legend if there are several runs."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 7), layout="constrained")
        for panel, axes in zip(self.panels, figure.subplots(2, 2).flat, strict=True):
            panel(axes)
        if len(self.runs) > 1:
            looks = {run.name: {"color": color_of(n)} for n, run in enumerate(self.runs)}
            _legend(figure, looks, loc="outside lower center", ncols=min(len(looks), 4))
        return figure

    @property
    def panels(self) -> tuple[Callable[[Any], None], ...]:
        """The functions that draw the panels, in order."""
        return self.loss, self.norms, self.learning_rates, self.speed

    def loss(self, axes: Any) -> None:
        """Draw the loss of each run, and with dashes the losses of modules that it sums."""
        for number, run in enumerate(self.runs):
            _line(axes, run.curve("loss"), self.smooth, color=color_of(number))
            axes.plot(*run.eval_curve("eval_loss"), "o", color=color_of(number), markersize=4)
        losses = [run.losses() for run in self.runs]
        modules = dict.fromkeys(module for curves in losses for module in curves)
        dashes = dict(zip(modules, itertools.cycle(DASHES[1:])))
        for curves, color in zip(losses, itertools.cycle(COLORS)):
            for module, curve in curves.items():
                _line(axes, curve, self.smooth, color=color, linestyle=dashes[module])
        if modules:
            looks = {"weighted sum": DASHES[0], **dashes}
            _legend(axes, {m: {"linestyle": d, "color": "#888888"} for m, d in looks.items()})
        dots = " (dots: evaluation)" * any(run.evals for run in self.runs)
        self._finish(axes, f"loss{self._mean_of}{dots}")

    def norms(self, axes: Any) -> None:
        """Draw the gradient norm of each module."""
        curves = [{module: run.norms_of(module) for module in run.modules()} for run in self.runs]
        # A frozen module has no norms, and a logarithmic axis cannot show zero.
        shown = [
            {module: curve for module, curve in each.items() if any(v > 0 for v in curve[1])}
            for each in curves
        ]
        _lines_by_module(axes, shown, self.smooth)
        has_lines = bool(axes.lines)
        self._finish(axes, f"gradient norm{self._mean_of}")
        if has_lines:
            _make_logarithmic(axes)

    def learning_rates(self, axes: Any) -> None:
        """Draw learning rates by module; modules of one run with equal rates are merged."""
        found = [run.rates() for run in self.runs]
        if len(self.runs) == 1:
            rates = [{", ".join(names): curve for names, curve in found[0].items()}]
        elif all(len(curves) == 1 for curves in found):
            rates = [{"all modules": next(iter(curves.values()))} for curves in found]
        else:
            rates = [{name: curve for names, curve in e.items() for name in names} for e in found]
        _lines_by_module(axes, rates, smooth=1)
        self._finish(axes, "learning rate")

    def speed(self, axes: Any) -> None:
        """Draw the tokens per second of each run."""
        for number, run in enumerate(self.runs):
            _line(axes, run.curve("tokens_per_s"), self.smooth, color=color_of(number))
        self._finish(axes, f"tokens/s{self._mean_of}")
        axes.set_ylim(bottom=0)

    @property
    def _mean_of(self) -> str:
        return f", mean of {self.smooth} steps" if self.smooth > 1 else ""

    def _finish(self, axes: Any, title: str) -> None:
        """Mark where runs were resumed, and set the title."""
        for number, run in enumerate(self.runs):
            color = color_of(number) if len(self.runs) > 1 else "#888888"
            for step in run.resumed_after():
                axes.axvline(step, color=color, linestyle=":", linewidth=1, zorder=0.5)
        axes.set_title(title, loc="left", fontsize=10)
        dotted = ", dotted where resumed" * any(run.resumes for run in self.runs)
        axes.set_xlabel(f"step{dotted}", fontsize=8)
        axes.tick_params(labelsize=8)


def color_of(number: int) -> str:
    """Return the colour of a run by its number."""
    return COLORS[number % len(COLORS)]


@contextmanager
def _style(ink: str) -> Iterator[None]:
    import matplotlib as mpl

    colors = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink
    )
    with mpl.rc_context({**_STYLE, **colors, "grid.color": ink}), warnings.catch_warnings():
        # matplotlib's font may lack the script of a name; SVG uses the reader's font.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def _saved(figure: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, **how)
    return buffer.getvalue()


def _lines_by_module(axes: Any, runs: Sequence[dict[str, Curve]], smooth: int) -> None:
    """Draw curves by module: a colour per module for a single run, else a dash style."""
    modules = list(dict.fromkeys(module for curves in runs for module in curves))
    if len(runs) == 1:
        looks = {m: {"color": c} for m, c in zip(modules, itertools.cycle(COLORS))}
        shown = looks
    else:
        looks = {m: {"linestyle": d} for m, d in zip(modules, itertools.cycle(DASHES))}
        shown = {m: {**look, "color": "#888888"} for m, look in looks.items()}
    for curves, color in zip(runs, itertools.cycle(COLORS)):
        for module, curve in curves.items():
            _line(axes, curve, smooth, **{"color": color, **looks[module]})
    _legend(axes, shown)


def _line(axes: Any, curve: Curve, smooth: int, **look: str) -> None:
    """Draw a curve; with smoothing, draw the raw values, too, but faintly."""
    steps, values = curve
    if smooth > 1:
        axes.plot(*thinned(curve, MOST_POINTS), **look, linewidth=0.8, alpha=0.3)
        curve = steps, moving_average(values, smooth)
    # A single point makes no line, so mark it.
    marker = "." if len(steps) == 1 else None
    axes.plot(*thinned(curve, MOST_POINTS), **look, linewidth=1.4, marker=marker)


def _legend(owner: Any, looks: dict[str, dict[str, str]], **how: Any) -> None:
    from matplotlib.lines import Line2D

    if looks:
        # matplotlib leaves out names that start with an underscore.
        names = [f" {name}" if name.startswith("_") else name for name in looks]
        owner.legend([Line2D([], [], **look) for look in looks.values()], names, **how)


def _make_logarithmic(axes: Any) -> None:
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):  # type: ignore[misc]
        """Omits the labels that LogFormatter omits, and writes the others as 0.5 or 1000."""

        def __call__(self, value: float, position: int | None = None) -> str:
            return f"{value:g}" if super().__call__(value, position) else ""

    axes.set_yscale("log")
    # The default labels are formulas, which are off. With few decades, label values in between.
    axes.yaxis.set_major_formatter(Plain())
    axes.yaxis.set_minor_formatter(Plain(minor_thresholds=(2, 0.5)))
    axes.tick_params(which="minor", labelsize=7)
