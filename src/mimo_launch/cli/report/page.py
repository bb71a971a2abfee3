"""The page of a report: a drawing, and a table with a row per run.

Decides: the columns and their words; that all text from a file or a path is escaped.
Relies on: `figure` for the drawing, `train.metrics_file` and the files of the run folder, each of
which may be missing.
Leaves: writing the page to the command.
"""

import math
import statistics
from collections.abc import Sequence

from mimo_launch.drawing.html_page import html_page, html_table, html_text
from mimo_launch.train.metrics_file import Curve, History

COLUMNS = (
    "run", "status", "steps", "last loss", "best loss", "last evaluation", "median tokens/s",
    "skipped steps", "bad samples", "checkpoints",
)  # fmt: skip


def row(run: History) -> tuple[str, ...]:
    """Return the cells of a run, in the order of `COLUMNS`."""
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
        run.name,
        _status(run),
        f"{run.steps[-1]['step']:,}",
        _last(run.curve("loss")),
        f"{best:.4f} at step {best_step:,}" if finite else "-",
        evaluation,
        f"{statistics.median(speeds):,.0f}" if speeds else "-",
        f"{run.total('skipped'):,}",
        f"{run.total('bad_samples'):,}",
        str(sum(is_complete(path) for path in all_checkpoints(run.run))),
    )


def _status(run: History) -> str:
    """Return the state of a run; a running one looks the same as one that was killed."""
    from mimo_launch.launcher.run_folder import FAILURE, SPEC
    from mimo_launch.launcher.run_status import has_failed
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
svg { width: 100%; height: auto; }
th:not(:first-child), td:not(:first-child) { text-align: right; }"""


_BODY = """\
<figure role="img" aria-label="{label}" style="margin: 0">
{drawing}
</figure>
{table}"""


def page(names: Sequence[str], rows: Sequence[Sequence[str]], drawing: str) -> str:
    """Return the page of some runs; `drawing` is an SVG element."""
    title = "Runs: " + ", ".join(names) if len(names) > 1 else f"Run {names[0]}"
    label = f"Loss, gradient norm, learning rate and tokens per second: {title}"
    body = _BODY.format(label=html_text(label), drawing=drawing, table=html_table(COLUMNS, rows))
    return html_page(title, body, style=_STYLE, width="72rem")
