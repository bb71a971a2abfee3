"""The charts of runs: loss, gradient norms, learning rates and throughput over the steps.

Decides: which curves a chart has, and their looks. A run has the same colour in all charts, a
module the same dashes; a single run has a colour per module instead.
Relies on: `train.history` for curves.
Leaves: axes and files to `drawing`, the page to `report`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle

from mimo_launch.diag.frozen import frozen
from mimo_launch.drawing.charts import GREY, Chart, Dash, Line, Look
from mimo_launch.train.history import Curve, History, moving_average, thinned

# Colours that are distinct on white and on black.
COLORS = (
    "#1f77b4", "#e07b1a", "#2ca02c", "#d9483b", "#9467bd",
    "#a0705f", "#d765b3", "#7f8c8d", "#a8a01d", "#17a5b8",
)  # fmt: skip
DASHES: tuple[Dash, ...] = ((), (6, 3), (1.5, 2.5), (7, 3, 1.5, 3))
MOST_POINTS = 1500


def color_of(number: int) -> str:
    """Return the colour of a run by its number."""
    return COLORS[number % len(COLORS)]


@frozen
class Charts:
    """The charts of some runs; curves are averaged over `smooth` steps."""

    runs: Sequence[History]
    smooth: int

    def all(self) -> tuple[Chart, ...]:
        """Return the charts in order."""
        return self.loss(), self.norms(), self.learning_rates(), self.speed()

    def legend(self) -> dict[str, Look]:
        """Return the colours of runs; none if there is only one."""
        looks = {run.name: Look(color=color_of(n)) for n, run in enumerate(self.runs)}
        return looks if len(looks) > 1 else {}

    def loss(self) -> Chart:
        """Return the loss of each run, and with dashes the losses of modules that it sums."""
        losses = [run.losses() for run in self.runs]
        modules = dict.fromkeys(module for curves in losses for module in curves)
        dashes = dict(zip(modules, cycle(DASHES[1:])))
        lines: list[Line] = []
        for number, (run, curves) in enumerate(zip(self.runs, losses, strict=True)):
            look = Look(color=color_of(number))
            lines += self._curve(run, "loss", run.curve("loss"), look)
            for each in run.eval_sets:
                name = self._named(run, " ".join(filter(None, ("evaluation", each))))
                evaluated = run.eval_curve("eval_loss", each)
                lines.append(Line(name, *evaluated, replace(look, dots=True)))
            for module, curve in curves.items():
                lines += self._curve(run, module, curve, replace(look, dash=dashes[module]))
        legend = {"weighted sum": Look()} | {m: Look(dash=each) for m, each in dashes.items()}
        dots = " (dots: evaluation)" * any(run.evals for run in self.runs)
        return self._chart(f"loss{self._mean_of}{dots}", lines, legend if modules else {})

    def norms(self) -> Chart:
        """Return the gradient norm of each module."""
        curves = [run.norms() for run in self.runs]
        # A frozen module has no norms, and a logarithmic axis cannot show zero.
        shown = [
            {module: curve for module, curve in each.items() if any(v > 0 for v in curve[1])}
            for each in curves
        ]
        lines, legend = self._by_module(shown)
        chart = self._chart(f"gradient norm{self._mean_of}", lines, legend)
        return replace(chart, is_log=bool(lines))

    def learning_rates(self) -> Chart:
        """Return learning rates by module; modules of one run with equal rates are merged."""
        found = [run.rates() for run in self.runs]
        if len(self.runs) == 1:
            rates = [{", ".join(names): curve for names, curve in found[0].items()}]
        elif all(len(curves) == 1 for curves in found):
            rates = [{"all modules": next(iter(curves.values()))} for curves in found]
        else:
            rates = [{name: curve for names, curve in e.items() for name in names} for e in found]
        return self._chart("learning rate", *replace(self, smooth=1)._by_module(rates))

    def speed(self) -> Chart:
        """Return the tokens per second of each run."""
        lines = chain.from_iterable(
            self._curve(run, "tokens/s", run.curve("tokens_per_s"), Look(color=color_of(number)))
            for number, run in enumerate(self.runs)
        )
        chart = self._chart(f"tokens/s{self._mean_of}", lines, {})
        return replace(chart, from_zero=True)

    @property
    def _mean_of(self) -> str:
        return f", mean of {self.smooth} steps" if self.smooth > 1 else ""

    def _named(self, run: History, what: str) -> str:
        return what if len(self.runs) == 1 else f"{run.name}: {what}"

    def _by_module(
        self, curves: Sequence[Mapping[str, Curve]]
    ) -> tuple[list[Line], dict[str, Look]]:
        """Return the curves of all runs by module, and the legend of modules."""
        modules = list(dict.fromkeys(module for each in curves for module in each))
        if len(self.runs) == 1:
            looks = {m: Look(color=color) for m, color in zip(modules, cycle(COLORS))}
        else:
            looks = {m: Look(dash=dash) for m, dash in zip(modules, cycle(DASHES))}
        lines: list[Line] = []
        for number, (run, each) in enumerate(zip(self.runs, curves, strict=True)):
            for module, curve in each.items():
                look = looks[module]
                if len(self.runs) > 1:
                    look = replace(look, color=color_of(number))
                lines += self._curve(run, module, curve, look)
        return lines, looks

    def _curve(self, run: History, what: str, curve: Curve, look: Look) -> Iterator[Line]:
        """Yield a curve; with smoothing, the values themselves first, faint and without a name."""
        steps, values = curve
        if self.smooth > 1:
            yield Line("", *thinned(curve, MOST_POINTS), replace(look, faint=True))
            curve = steps, moving_average(values, self.smooth)
        yield Line(self._named(run, what), *thinned(curve, MOST_POINTS), look)

    def _chart(
        self, title: str, lines: Iterator[Line] | list[Line], legend: dict[str, Look]
    ) -> Chart:
        """Return a chart that marks where runs were resumed."""
        marks = tuple(
            (step, color_of(number) if len(self.runs) > 1 else GREY)
            for number, run in enumerate(self.runs)
            for step in run.resumed_after()
        )
        below = "step" + ", dotted where resumed" * any(run.resumes for run in self.runs)
        return Chart(title=title, below=below, lines=tuple(lines), legend=legend, marks=marks)
