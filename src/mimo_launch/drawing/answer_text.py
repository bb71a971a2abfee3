"""The words of the first screen of `plan`: the same on a terminal and on a page.

Decides: which facts come first and how each is said; the bars of time by what ranks hold.
Relies on: `search.answer` for the facts, `estimate.rows` for the bars.
Leaves: lines, bars and colours to `cli` and `plan_page`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mimo_launch.diag.quantities import (
    bytes_text,
    figure,
    named_ranks,
    num_ranks_text,
    percent,
    scaled,
    seconds_text,
    sizes_text,
)
from mimo_launch.drawing.rows import Report
from mimo_launch.search.answer import MemoryFit, PlanAnswer
from mimo_launch.search.fitting import WhatFits
from mimo_launch.search.wastes import LEAST, SHARES, gpus_text, rows_by_modules
from mimo_launch.spec.wording import flow

TIME_TITLE = "Where the time goes (mean over all GPUs)"
LOSSES_TITLE = "Largest losses, and what helps most"
ONE_BY_ONE = "Each was planned by itself, so gains do not add up: make the first, then plan again."
FITS_TITLE = "What fits, the fastest first"
RANKS_TITLE = "Ranks by what they hold"
# Words for the shares of `TimeShares`, in the order of a bar.
PARTS = {
    "computing": "computes",
    "communicating": "communicates",
    "waiting": "waits",
    "updating": "updates",
}
# Words for the parts of `communicating`.
EXCHANGED = {
    "between_layers": "between layers (tp, cp)",
    "of_experts": "tokens of experts",
    "of_replicas": "weights and gradients (dp)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossText:
    """A loss, what helps most, and the lines of the spec to write for that."""

    head: str
    helps: str | None
    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderText:
    """Ranks that hold the same modules, and the shares of a step by the names of `PARTS`."""

    text: str
    shares: dict[str, float]


def title_of(report: Report) -> str:
    """Return the job in a line."""
    header = report.header
    return f"{header.name}: {num_ranks_text(header.world_size)}, plan {header.plan_hash}"


def basis_of(report: Report) -> str:
    """Say what the estimates are for."""
    header, answer = report.header, report.answer
    rows = ", ".join(f"{n} rows for {name}" for name, n in header.nominal_rows.items() if n)
    size = "the mean" if answer.sample == "mean" else "the largest"
    other = " (--worst: the largest)" if answer.sample == "mean" else ""
    has = f", {rows}" if rows else ""
    return (
        f"Estimated for {report.estimates.device}. Every sample is {size} of what the data can "
        f"give{has}{other}."
    )


def facts_of(report: Report) -> dict[str, str]:
    """Return whether the job fits and how fast it is, by name."""
    header, answer = report.header, report.answer
    facts = {
        "memory": _fit_text(answer.fit),
        "step": f"{seconds_text(answer.step_seconds)} for {header.global_batch} samples of "
        f"{header.seq} tokens, in {header.microbatches} "
        f"microbatch{'es' * (header.microbatches != 1)} of {header.microbatch_size}",
        "speed": f"{answer.tokens_per_second:,.0f} tokens/s, "
        f"{answer.tokens_per_second_per_gpu:,.0f} per GPU, "
        f"MFU {100 * answer.mfu:.{1 if answer.mfu >= 0.001 else 4}f}%",
    }
    if answer.tokens is not None and answer.days is not None:
        facts["days"] = f"{figure(answer.days)} for {scaled(answer.tokens)} tokens"
    return facts


def _fit_text(fit: MemoryFit) -> str:
    who = f"{' and '.join(fit.modules)} on {named_ranks(fit.ranks)}"
    needed = f"{bytes_text(fit.needed_bytes)} on the fullest GPUs ({who})"
    if fit.gpu_memory is None:
        return f"{needed}; `nodes: {{gpus: 8, gpu: h100-80gb}}` in the spec says whether that fits"
    left = fit.gpu_memory - fit.needed_bytes
    if left < 0:
        return f"may not fit: {needed}, and a GPU has {bytes_text(fit.gpu_memory)}"
    share = percent(left / fit.gpu_memory)
    return f"fits: {needed} of {bytes_text(fit.gpu_memory)}, {share} free"


def times_of(answer: PlanAnswer) -> dict[str, float]:
    """Return the seconds of a step by the names of `PARTS`, mean over all GPUs."""
    return {part: getattr(answer.time, part) for part in PARTS}


def exchanges_of(answer: PlanAnswer) -> str | None:
    """Return what ranks exchange, in words; None if that takes next to no time."""
    seconds = {part: getattr(answer.time, part) for part in EXCHANGED}
    shown = [
        f"{EXCHANGED[part]} {seconds_text(each)}"
        for part, each in seconds.items()
        if each >= LEAST * answer.step_seconds
    ]
    return ", ".join(shown) or None


def add_up(answer: PlanAnswer) -> str | None:
    """Say how several changes go together; None if there are not several."""
    return ONE_BY_ONE if sum(loss.change is not None for loss in answer.losses) > 1 else None


def losses_of(answer: PlanAnswer) -> Iterator[LossText]:
    """Yield the largest losses, numbered, with what helps."""
    for number, loss in enumerate(answer.losses, 1):
        head = f"{number}. {loss.what}"
        if loss.of_all < loss.share:
            head += f" ({percent(loss.of_all)} of all GPU time)"
        change = loss.change
        if change is None:
            none = "no other kind of change helps by 2% or more" if answer.planned else None
            yield LossText(head=head, helps=none, settings=())
            continue
        faster = f"{percent(change.gain)} faster"
        if change.gain >= 1:
            faster = f"{1 + change.gain:.1f} times as fast"
        step, needed = seconds_text(change.step_seconds), bytes_text(change.needed_bytes)
        gain = f"{faster}, {step} a step, {needed}:"
        lines = tuple(_yaml(change.settings))
        yield LossText(head=head, helps=f"{gain} {change.text}", settings=lines)


def fitting_of(found: WhatFits) -> Iterator[LossText]:
    """Yield what makes a spec fit, numbered; one line of text if nothing does."""
    if not found.changes:
        none = f"none of the {found.planned} changes that were planned: take more GPUs"
        yield LossText(head=none, helps=None, settings=())
    for number, change in enumerate(found.changes, 1):
        needs = f"{bytes_text(change.needed_bytes)} on the fullest GPUs"
        head = f"{number}. {seconds_text(change.step_seconds)} a step, {needs}: {change.text}"
        yield LossText(head=head, helps=None, settings=tuple(_yaml(change.settings)))


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


def holders_of(report: Report) -> Iterator[HolderText]:
    """Yield the ranks by what they hold, with how they spend the step."""
    grids = {row.name: sizes_text(row.grid) for row in report.modules}
    for names, alike in rows_by_modules(report.estimates).items():
        ranks = sorted(rank for row in alike for rank in row.ranks)
        held = ", ".join(f"{name} ({grids[name]})" for name in names)
        shares = {
            part: sum(len(row.ranks) * SHARES[part](row) for row in alike) / len(ranks)
            for part in PARTS
        }
        text = f"{named_ranks(ranks)}, {gpus_text(ranks)}: {held}"
        yield HolderText(text=text, shares=shares)
