"""The page of a report: drawings, a table with a column per run, and the settings that differ.

Decides: the numbers of a run and their words; which settings are compared, as the runs' own
`spec.yaml` have them; that panels stand below each other where a screen is narrow; that all text
from a file or a path is escaped.
Relies on: `figure` for the drawings, `train.history`, for resumed runs, too, and the files of
the run folder, each of which may be missing.
Leaves: writing the page to the command.
"""

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from mimo_launch.drawing.html_page import html_page, html_table, html_text
from mimo_launch.train.history import Curve, History

# A run is named by its folder.
_LEFT_OUT = ("version", "name")


def differing_settings(runs: Sequence[History]) -> list[tuple[str, ...]]:
    """Return each key that differs, with its value in each run; `-` where it has none.

    Runs without a spec that can be read have `?` everywhere.
    """
    found = [_settings(run) for run in runs]
    readable = [each for each in found if each]
    keys = dict.fromkeys(key for each in readable for key in each)
    return [
        (key, *(each.get(key, "-") if each else "?" for each in found))
        for key in keys
        if len({each.get(key, "-") for each in readable}) > 1
    ]


def changed_settings(runs: Sequence[History]) -> list[tuple[str, str, str]]:
    """Return a run, where it was resumed, and a setting that it changed there, in order."""
    return [
        (run.name, f"{record['step']:,}", str(change))
        for run in runs
        for record in run.resumes
        for change in record.get("changes") or ("no setting changed",)
    ]


def _settings(run: History) -> dict[str, str]:
    """Return the settings of a run by key; none if its spec is missing or cannot be read."""
    from mimo_launch.launcher.run_folder import SPEC
    from mimo_launch.spec.load import dump_spec, load_spec

    spec = load_spec(run.run / SPEC).spec
    if spec is None:
        return {}
    return {key: text for key, text in _flat(dump_spec(spec), "") if key not in _LEFT_OUT}


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


ROWS = (
    "status", "steps", "last loss", "best loss", "last evaluation", "median tokens/s",
    "skipped steps", "bad samples", "checkpoints", "resumed after",
)  # fmt: skip


def cells(run: History) -> tuple[str, ...]:
    """Return the cells of a run, in the order of `ROWS`."""
    from mimo_launch.checkpoint.folder import all_checkpoints, is_complete

    steps, losses = run.curve("loss")
    finite = [(loss, step) for step, loss in zip(steps, losses, strict=True) if math.isfinite(loss)]
    best, best_step = min(finite, default=(math.nan, 0))
    evaluation = _last(run.eval_curve("eval_loss"))
    accuracy = run.eval_curve("digit_accuracy")[1][-1] if run.evals else math.nan
    if math.isfinite(accuracy):
        evaluation += f", digit accuracy {accuracy:.1%}"
    speeds = [value for value in run.curve("tokens_per_s")[1] if math.isfinite(value)]
    return (
        _status(run),
        f"{run.steps[-1]['step']:,}",
        _last(run.curve("loss")),
        f"{best:.4f} at step {best_step:,}" if finite else "-",
        evaluation,
        f"{statistics.median(speeds):,.0f}" if speeds else "-",
        f"{run.total('skipped'):,}",
        f"{run.total('bad_samples'):,}",
        str(sum(is_complete(path) for path in all_checkpoints(run.run))),
        ", ".join(f"{step:,}" for step in run.resumed_after()) or "-",
    )


def _status(run: History) -> str:
    """Return the state of a run; a running one looks the same as one that was killed."""
    from mimo_launch.launcher.run_folder import FAILURE, SPEC, has_failed
    from mimo_launch.spec.load import load_spec

    spec = load_spec(run.run / SPEC).spec
    done, wanted = run.steps[-1]["step"], None if spec is None else spec.train.steps
    if wanted is not None and done >= wanted:
        return "done"
    if has_failed(run.run):
        return f"failed, see {FAILURE}"
    return "-" if wanted is None else f"step {done:,} of {wanted:,}"


def _last(curve: Curve) -> str:
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


def page(runs: Sequence[History], panels: Sequence[str], colors: Sequence[str]) -> str:
    """Return the page of some runs, which have these colours in the `panels`: SVG elements."""
    names = [run.name for run in runs]
    title = "Runs: " + ", ".join(names) if len(names) > 1 else f"Run {names[0]}"
    label = f"Loss, gradient norm, learning rate and tokens per second: {title}"
    parts = [_names(names, colors)] if len(names) > 1 else []
    drawing = "\n".join(panels)
    parts += [
        f'<figure class="panels" role="img" aria-label="{html_text(label)}">\n{drawing}\n</figure>',
        html_table(("", *names), list(zip(ROWS, *map(cells, runs), strict=True))),
    ]
    if len(runs) > 1:
        parts.append("<h2>Settings that differ</h2>")
        rows = differing_settings(runs)
        nothing = "<p>None, in the specs of these runs that can be read.</p>"
        parts.append(html_table(("setting", *names), rows) if rows else nothing)
    if changes := changed_settings(runs):
        parts += ["<h2>Resumed</h2>", html_table(("run", "after step", "changed"), changes)]
    return html_page(title, "\n".join(parts), style=_STYLE, width="72rem")


def _names(names: Sequence[str], colors: Sequence[str]) -> str:
    """Return the names of runs, each behind its colour."""
    items = "\n".join(
        f'<li><b style="color: {color}">&#9644;</b> <span>{html_text(name)}</span></li>'
        for name, color in zip(names, colors, strict=True)
    )
    return f'<ul class="runs">\n{items}\n</ul>'
