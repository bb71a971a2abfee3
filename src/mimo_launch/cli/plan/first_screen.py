"""The first screen of `plan`: the answer, then the ranks by what they hold.

Decides: what a reader sees first, in at most some 40 lines, readable at 60 columns.
Relies on: `search.answer` for the facts, `estimate.rows` for the bars.
Leaves: tables of everything to `tables`.
"""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from mimo_launch.cli.plan.estimate_tables import seconds_text
from mimo_launch.diag.quantities import bytes_text, figure, percent, ranks_text, scaled, sizes_text
from mimo_launch.drawing.rows import ModuleRow, Report
from mimo_launch.estimate.rows import RankEstimate
from mimo_launch.search.answer import Loss, MemoryFit, OfferedChange, PlanAnswer
from mimo_launch.search.wastes import SHARES, gpus_text, rows_by_modules
from mimo_launch.spec.wording import flow

_WIDEST = 80
_BAR = 50
# Words and characters for the shares of `TimeShares`, in the order of a bar.
_PARTS = {
    "computing": ("computes", "#"),
    "communicating": ("communicates", "+"),
    "waiting": ("waits", "."),
    "updating": ("updates", "="),
}


def first_screen(report: Report, width: int) -> Iterator[RenderableType]:
    """Yield the answer and the picture."""
    width = min(width, _WIDEST)
    answer, header = report.answer, report.header
    yield f"{header.name}: {header.world_size:,} ranks, plan {header.plan_hash}"
    rows = ", ".join(f"{n} rows for {name}" for name, n in header.nominal_rows.items() if n)
    size = "the mean" if answer.sample == "mean" else "the largest"
    other = " (--worst: the largest)" if answer.sample == "mean" else ""
    has = f", {rows}" if rows else ""
    yield from _lines(
        f"Estimated for {report.estimates.device}. Every sample is {size} of what the data can "
        f"give{has}{other}.",
        width,
    )
    yield ""
    facts = {"memory": _fit_text(answer.fit), "step": _step_text(report), "speed": _speed(answer)}
    if answer.tokens is not None and answer.days is not None:
        facts["days"] = f"{figure(answer.days)} for {scaled(answer.tokens)} tokens"
    for name, text in facts.items():
        yield from _lines(f"{name:8}{text}", width, indent=8)
    yield from _title("Where the time goes (mean over all GPUs)")
    yield from _time(answer, width)
    if answer.losses:
        yield from _title("Largest losses, and what helps most")
        for number, loss in enumerate(answer.losses, 1):
            yield from _loss(number, loss, width, planned=answer.planned)
    yield from _title("Ranks by what they hold")
    for modules, alike in rows_by_modules(report.estimates).items():
        yield from _role(report.modules, modules, alike, width)
    yield ""
    yield from _lines(
        "--full: groups, stages, bridges, schedule, memory and work of all ranks. --rank N: of one",
        width,
    )


def _title(text: str) -> Iterator[RenderableType]:
    yield ""
    yield Text(text, style="bold")


def _lines(text: str, width: int, indent: int = 0) -> Iterator[str]:
    yield from wrap(
        text, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    )


def _fit_text(fit: MemoryFit) -> str:
    who = f"{' and '.join(fit.modules)} on ranks {ranks_text(fit.ranks)}"
    needed = f"{bytes_text(fit.needed_bytes)} on the fullest GPUs ({who})"
    if fit.gpu_memory is None:
        return f"{needed}; `nodes: {{gpus: 8, gpu: h100-80gb}}` in the spec says whether that fits"
    left = fit.gpu_memory - fit.needed_bytes
    if left < 0:
        return f"may not fit: {needed}, and a GPU has {bytes_text(fit.gpu_memory)}"
    share = percent(left / fit.gpu_memory)
    return f"fits: {needed} of {bytes_text(fit.gpu_memory)}, {share} free"


def _step_text(report: Report) -> str:
    header = report.header
    return (
        f"{seconds_text(report.answer.step_seconds)} for {header.global_batch} samples of "
        f"{header.seq} tokens, in {header.microbatches} "
        f"microbatch{'es' * (header.microbatches != 1)} of {header.microbatch_size}"
    )


def _speed(answer: PlanAnswer) -> str:
    return (
        f"{answer.tokens_per_second:,.0f} tokens/s, {answer.tokens_per_second_per_gpu:,.0f} per "
        f"GPU, MFU {100 * answer.mfu:.{1 if answer.mfu >= 0.001 else 4}f}%"
    )


def _time(answer: PlanAnswer, width: int) -> Iterator[str]:
    for part, (name, mark) in _PARTS.items():
        seconds = getattr(answer.time, part)
        share = seconds / answer.step_seconds
        bar = mark * round(share * min(_BAR, width - 32))
        yield f"{name:14}{seconds_text(seconds):>9} {percent(share):>5}  {bar}".rstrip()


def _loss(number: int, loss: Loss, width: int, *, planned: int) -> Iterator[RenderableType]:
    head = f"{number}. {loss.what}"
    if loss.of_all < loss.share:
        head += f" ({percent(loss.of_all)} of all GPU time)"
    for line in _lines(head, width, indent=3):
        yield Text(line, style="yellow")
    if loss.change is not None:
        yield from _change(loss.change, width)
    elif planned:
        yield "   no other kind of change helps by 2% or more"


def _change(change: OfferedChange, width: int) -> Iterator[RenderableType]:
    gain = f"{percent(change.gain)} faster, {seconds_text(change.step_seconds)} a step:"
    yield from _lines(f"   {gain} {change.text}", width, indent=3)
    for line in _yaml(change.settings):
        yield Text(f"     {line}", style="green")


def _yaml(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings as lines of a spec, one for each module and section."""
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        *keys, last = path.split(".")
        place = tree
        for key in keys:
            place = place.setdefault(key, {})
        place[last] = value
    modules = tree.pop("modules", {})
    if modules:
        yield "modules:"
    for name, module in modules.items():
        yield f"  {name}: {flow(module)}"
    for key, section in tree.items():
        yield f"{key}: {flow(section)}"


def _role(
    modules: Sequence[ModuleRow], names: tuple[str, ...], alike: Sequence[RankEstimate], width: int
) -> Iterator[str]:
    ranks = sorted(rank for row in alike for rank in row.ranks)
    grids = {row.name: sizes_text(row.grid) for row in modules}
    held = ", ".join(f"{name} ({grids[name]})" for name in names)
    shown = ranks_text(ranks)
    yield from _lines(f"ranks {shown}, {gpus_text(ranks)}: {held}", width, indent=2)

    size, bar, total = min(width - 2, 72), "", 0.0
    for part, (_, mark) in _PARTS.items():
        total += sum(len(row.ranks) * SHARES[part](row) for row in alike) / len(ranks)
        bar += mark * max(0, round(total * size) - len(bar))
    yield f"  {bar}"
