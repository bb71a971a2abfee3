"""`mimo-launch report`: curves of one or several runs in one file, with tables if it is a page.

Decides: the format of the file by its suffix, the names of runs, and the exit code. For a page also
the figures of a run and their labels, which settings from the runs' `spec.yaml` it compares, that
panels are below each other on a narrow screen, and that all text from a file or a path is escaped.
Relies on: `train.history` to read runs, including resumed ones, and the files of the run folder,
each of which may be missing; `report_figure` for the drawings.
Leaves: live metrics of a run to `train`, TensorBoard and Weights & Biases.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimo_launch.cli.shared.console import console_of

if TYPE_CHECKING:
    from mimo_launch.cli.report_figure import Charts
    from mimo_launch.train.history import Curve, History

HELP = """
\b
Examples:
  mimo-launch report runs/quickstart
  mimo-launch report runs/small runs/large --smooth 20 -o compared.html
  mimo-launch report runs/quickstart -o loss.png

Draw loss, gradient norms, learning rates and throughput of runs, which may still be running. The
suffix of the file sets its format: .html (with tables of the runs and of the settings that differ;
nothing is fetched to show it), .svg, or .png, which needs Pillow. Point at a step in a page or an
SVG file to read its values. Exits with 0, with 2 when a run cannot be read, or with 1 when the file
cannot be written.
"""

SUFFIXES = (".html", ".png", ".svg")
REQUIREMENT = "pillow>=11.3"  # As in the extra `report` of pyproject.toml.


def report(
    ctx: typer.Context,
    *,
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, or their metrics.jsonl.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File; default: report.html in the first run's folder.",
        ),
    ] = None,
    smooth: Annotated[
        int, typer.Option(min=1, metavar="N", help="Average over the last N steps.")
    ] = 1,
) -> None:
    """Draw the curves of runs, as HTML, PNG or SVG."""
    from mimo_launch.cli.report_figure import Charts
    from mimo_launch.diag.installed import is_installed
    from mimo_launch.drawing.chart_files import charts_png, charts_svg
    from mimo_launch.train.history import NoHistory, read_history

    console = console_of(ctx)
    suffix = ".html" if output is None else output.suffix.lower()
    if suffix not in SUFFIXES:
        message = f"{output} ends in none of {', '.join(SUFFIXES)}"
        raise typer.BadParameter(message, param_hint="--output")
    if suffix == ".png" and not is_installed("PIL"):
        message = "Pillow, which writes PNG, is not installed"
        console.refuse(message, help_=f"pip install '{REQUIREMENT}', or name a .svg file")
    console.check_file(output, "--output")
    try:
        found = [read_history(path) for path in runs]
    except NoHistory as error:
        console.refuse(str(error), help_=error.help)
    histories = _with_different_names(found)
    for each in histories:
        if each.num_other_lines:
            lines = f"{each.num_other_lines} line" + "s" * (each.num_other_lines != 1)
            console.note(f"warning: {each.file}: left out {lines}, no record of a step")
    target, charts = output or histories[0].run / "report.html", Charts(histories, smooth)
    content: str | bytes
    if suffix == ".png":
        content = charts_png(charts.all(), charts.legend())
    elif suffix == ".svg":
        content = charts_svg(charts.all(), charts.legend())
    else:
        content = page(charts)
    console.write_file(target, content, "--output")
    console.answer(f"wrote {target}")


def _with_different_names(found: "Sequence[History]") -> "list[History]":
    """Return each run once; runs with equal folder names are named by their whole paths."""
    runs = list({each.file.resolve(): each for each in found}.values())
    names = [each.name for each in runs]
    return [replace(e, name=str(e.run)) if names.count(e.name) > 1 else e for e in runs]


# A run is named by its folder.
_LEFT_OUT = ("version", "name")


def differing_settings(runs: "Sequence[History]") -> list[tuple[str, ...]]:
    """Return each key that differs, with its value in each run; `-` if it is not set.

    Runs without a readable spec have `?` everywhere.
    """
    found = [_settings(run) for run in runs]
    readable = [each for each in found if each]
    keys = dict.fromkeys(key for each in readable for key in each)
    return [
        (key, *(each.get(key, "-") if each else "?" for each in found))
        for key in keys
        if len({each.get(key, "-") for each in readable}) > 1
    ]


def changed_settings(runs: "Sequence[History]") -> list[tuple[str, str, str]]:
    """Return (run, step where it was resumed, setting that changed there), in order."""
    return [
        (run.name, f"{record['step']:,}", str(change))
        for run in runs
        for record in run.resumes
        for change in record.get("changes") or ("no setting changed",)
    ]


def _settings(run: "History") -> dict[str, str]:
    """Return the settings of a run by key; none if its spec is missing or cannot be read."""
    from mimo_launch.launcher.run_folder import SPEC
    from mimo_launch.spec.load import dump_written, load_spec

    spec = load_spec(run.run / SPEC).spec
    if spec is None:
        return {}
    return {key: text for key, text in _flat(dump_written(spec), "") if key not in _LEFT_OUT}


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    import json

    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


ROWS = (
    "status", "steps", "last loss", "best loss", "last evaluation", "median tokens/s",
    "step, estimated", "tensors on the fullest GPU, estimated", "skipped steps", "bad samples",
    "checkpoints", "resumed after",
)  # fmt: skip


def cells(run: "History") -> tuple[str, ...]:
    """Return the cells of a run, in the order of `ROWS`."""
    from statistics import median

    from mimo_launch.checkpoint.folder import all_checkpoints, is_complete

    steps, losses = run.curve("loss")
    finite = [(loss, step) for step, loss in zip(steps, losses, strict=True) if math.isfinite(loss)]
    best, best_step = min(finite, default=(math.nan, 0))
    speeds = [value for value in run.curve("tokens_per_s")[1] if math.isfinite(value)]
    return (
        _status(run),
        f"{run.steps[-1]['step']:,}",
        _last(run.curve("loss")),
        f"{best:.4f} at step {best_step:,}" if finite else "-",
        "; ".join(_evaluation(run, each) for each in run.eval_sets) or "-",
        f"{median(speeds):,.0f}" if speeds else "-",
        *_against_plan(run),
        f"{run.total('skipped'):,}",
        f"{run.total('bad_samples'):,}",
        str(sum(is_complete(path) for path in all_checkpoints(run.run))),
        ", ".join(f"{step:,}" for step in run.resumed_after()) or "-",
    )


def _evaluation(run: "History", eval_set: str) -> str:
    """Return the last evaluation of a set."""
    loss = _last(run.eval_curve("eval_loss", eval_set))
    accuracy = run.eval_curve("digit_accuracy", eval_set)[1][-1]
    more = f", digit accuracy {accuracy:.1%}" if math.isfinite(accuracy) else ""
    return f"{eval_set} {loss}{more}".lstrip()


def _against_plan(run: "History") -> Iterator[str]:
    """Yield seconds of a step, and bytes, as they were measured and as the plan has them."""
    from mimo_launch.diag.quantities import bytes_text, seconds_text

    def pair(key: str) -> list[float]:
        found = [run.against_plan.get(f"{way}_{key}") for way in ("measured", "estimated")]
        numbers = [each for each in found if isinstance(each, int | float)]
        return numbers if len(numbers) == len(found) else []

    yield ", ".join(map(seconds_text, pair("step_s"))) or "-"
    yield ", ".join(bytes_text(int(each)) for each in pair("memory")) or "-"


def _status(run: "History") -> str:
    """Return the state of a run; a running one looks like one that was killed."""
    from mimo_launch.launcher.run_folder import FAILURE, has_failed, is_done, steps_of

    done, wanted = run.steps[-1]["step"], steps_of(run.run)
    if is_done(run.run, step=done, steps=wanted, ended_early=run.ended_early):
        return "done"
    if has_failed(run.run):
        return f"failed, see {FAILURE}"
    return "-" if wanted is None else f"step {done:,} of {wanted:,}"


def _last(curve: "Curve") -> str:
    numbers = [value for value in curve[1] if math.isfinite(value)]
    return f"{numbers[-1]:.4f}" if numbers else "-"


_STYLE = """\
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
          gap: .5rem; margin: 0; }
.panels svg { width: 100%; height: auto; }
.runs { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; list-style: none; }
.runs span { overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
thead th { white-space: normal; overflow-wrap: anywhere; min-width: 5rem; }"""


def page(charts: "Charts") -> str:
    """Return the page of the runs of some charts."""
    from mimo_launch.cli.report_figure import color_of
    from mimo_launch.drawing.chart_files import CHART_STYLE, chart_element
    from mimo_launch.drawing.html_page import html_page, html_table, html_text
    from mimo_launch.drawing.table import Table

    runs = charts.runs
    names = [run.name for run in runs]
    title = "Runs: " + ", ".join(names) if len(names) > 1 else f"Run {names[0]}"
    label = f"Loss, gradient norm, learning rate and tokens per second: {title}"
    parts = []
    if len(names) > 1:
        items = "\n".join(
            f'<li><b style="color: {color_of(n)}">&#9644;</b> <span>{html_text(name)}</span></li>'
            for n, name in enumerate(names)
        )
        parts.append(f'<ul class="runs">\n{items}\n</ul>')
    drawing = "\n".join(map(chart_element, charts.all()))
    parts += [
        f'<figure class="panels" role="img" aria-label="{html_text(label)}">\n{drawing}\n</figure>',
        html_table(Table.of_cells(("", *names), zip(ROWS, *map(cells, runs), strict=True))),
    ]
    if len(runs) > 1:
        parts.append("<h2>Settings that differ</h2>")
        rows = differing_settings(runs)
        nothing = "<p>None, in the specs of these runs that can be read.</p>"
        parts.append(html_table(Table.of_cells(("setting", *names), rows)) if rows else nothing)
    if changes := changed_settings(runs):
        table = Table.of_cells(("run", "after step", "changed"), changes)
        parts += ["<h2>Resumed</h2>", html_table(table)]
    return html_page(title, "\n".join(parts), style=f"{_STYLE}\n{CHART_STYLE}", width="72rem")
