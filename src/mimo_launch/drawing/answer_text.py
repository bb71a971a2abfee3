"""The words of the first screen of `plan`: the same on a terminal and on a page.

Decides: the order and the wording of the facts; the bars of time, by the modules that ranks hold.
Relies on: `search.answer` for the facts, `estimate.rows` for the bars.
Leaves: lines, bars and colours to `cli` and `plan_page`.
"""

from collections.abc import Iterator

from mimo_launch.checks.memory import TOLERANCE
from mimo_launch.data.fact_source import Source
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import (
    bytes_text,
    counted,
    figure,
    listed,
    named_ranks,
    percent,
    seconds_text,
    sizes_text,
    tokens_text,
)
from mimo_launch.drawing.rows import Header, Report
from mimo_launch.search.answer import MemoryFit, OfferedChange, PlanAnswer, WhatFits
from mimo_launch.search.wastes import LEAST, SHARES, gpus_text, rows_by_modules
from mimo_launch.spec.base import LANGUAGE, Axis
from mimo_launch.spec.editing import lines_of, tree_of

TIME_TITLE = "Where the time goes (mean over all GPUs)"
LOSSES_TITLE = "Largest losses, and what helps most; the best change first"
KEYS_STAY = (
    "Write these lines into the spec; keys that they do not name stay as they are. "
    "Or add --apply 1 -o new.yaml, which writes a spec with change 1."
)
# Words for the kinds of planned changes; any other kind is the name of a grid.
KINDS = {
    "encoder_microbatches": "microbatches encoded at once",
    "generator_microbatches": "microbatches of generators at once",
    "recompute": "recomputing",
    "offload": "memory of the host",
    "sequence_parallel": "sequence parallelism",
}
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
# Words for the parts of `computing` and `communicating`.
DETAILS = {
    "computing": {
        "recomputing": "forwards again",
        "starting": "waiting for hosts to start kernels",
    },
    "communicating": {
        "between_layers": "activations between layers (tp, cp)",
        "of_experts": "tokens of experts (ep)",
        "of_replicas": "weights and gradients (dp, cp)",
        "with_host": "activations with the host",
    },
    "waiting": {"reading": "for Python to describe the next samples"},
}


# Sources that tell of a user's data; less padding than this is not worth a line.
_OF_DATA, _SOME_PADDING = (Source.INDEX, Source.HEADERS, Source.EXPECT), 0.1


@frozen(kw_only=True)
class LossText:
    """A loss, the change that helps most, and the lines of the spec for that change."""

    head: str
    helps: str | None
    settings: tuple[str, ...]


@frozen(kw_only=True)
class HolderText:
    """Ranks that hold the same modules, and the shares of a step by the names of `PARTS`.

    `text` has the grids and settings of the modules, and the memory of the fullest rank; `memory`
    has the parts of that memory in bytes.
    """

    text: str
    shares: dict[str, float]
    memory: dict[str, int]


def title_of(report: Report) -> str:
    """Return a line that describes the job."""
    header = report.header
    return f"{header.name}: {counted(header.world_size, 'rank')}, plan {header.plan_hash}"


def basis_of(report: Report) -> str:
    """Return a sentence about the device and the samples of the estimates."""
    header, answer = report.header, report.answer
    nominal = header.nominal_rows.items()
    rows = ", ".join(f"{counted(n, 'row')} for {name}" for name, n in nominal if n)
    has = f", on average {rows} in a sample" if rows else ""
    if answer.sample != "mean":
        has = f", {rows}" if rows else ""
        basis = f"Every sample is the largest that the data can give{has}."
        return f"Estimated for {report.estimates.device}. {basis}"
    return (
        f"Estimated for {report.estimates.device} and {header.basis}{has} (--worst: the largest)."
    )


def facts_of(report: Report) -> dict[str, str]:
    """Return whether the job fits and how fast it is, by name."""
    header, answer = report.header, report.answer
    dp = next(row.grid[Axis.DP] for row in report.modules if row.name == LANGUAGE)
    replicas = f" on each of {dp:,} language replicas" if dp > 1 else ""
    facts = {
        "memory": _fit_text(answer.fit) + _largest_step(header, answer.fit),
        "step": f"{seconds_text(answer.step_seconds)} for {counted(header.global_batch, 'sample')} "
        f"of {counted(header.seq, 'token')}: {counted(header.microbatches, 'microbatch')} of "
        f"{header.microbatch_size}"
        f"{replicas}",
        "speed": f"{answer.tokens_per_second:,.0f} tokens/s, "
        f"{answer.tokens_per_second_per_gpu:,.0f} per GPU, "
        f"MFU {100 * answer.mfu:.{1 if answer.mfu >= 0.001 else 4}f}%",
    }
    if header.epochs is not None:
        epochs = f"{header.epochs:g} epoch{'s' * (header.epochs != 1)}"
        seconds = seconds_text(header.steps * answer.step_seconds)
        facts["run"] = f"{counted(header.steps, 'step')} for {epochs}: {seconds}"
    if answer.tokens is None or answer.days is None:
        facts["speed"] += " (--tokens 1T: in how many days)"
    else:
        facts["days"] = f"{figure(answer.days)} for {tokens_text(answer.tokens)} tokens"
    if header.source in _OF_DATA and header.padding > _SOME_PADDING:
        facts["padding"] = _padding_text(header, answer.tokens_per_second)
    facts["error"] = answer.accuracy.text
    if answer.scaled_from is not None:
        facts["error"] += f"; rates here are those of an {answer.scaled_from} scaled by data sheets"
    return facts


def _padding_text(header: Header, positions_per_second: float) -> str:
    """Return how many positions hold no token, and the speed in tokens of the data."""
    of_data = (1 - header.padding) * positions_per_second
    return (
        f"{100 * header.padding:.0f}% of positions hold no token; {of_data:,.0f} tokens/s are of "
        "the data"
    )


def _largest_step(header: Header, fit: MemoryFit) -> str:
    """Return which step of a user's data is the largest, if all are known."""
    if fit.step is None or header.source not in _OF_DATA:
        return ""
    of = "" if fit.among is None else f" of the first {fit.among:,}"
    return f"; the largest step{of} is {fit.step + 1:,}, on rank {fit.rank:,}"


def _fit_text(fit: MemoryFit) -> str:
    who = f"{' and '.join(fit.modules)} on {named_ranks(fit.ranks)}"
    needed = f"{bytes_text(fit.needed_bytes)} on the fullest GPUs ({who})"
    if fit.gpu_memory is None:
        return f"{needed}; `nodes: {{gpus: 8, gpu: h100-80gb}}` in the spec says whether that fits"
    left = fit.gpu_memory - fit.needed_bytes
    if left < 0:
        fits = "does not fit" if -left > TOLERANCE * fit.gpu_memory else "may not fit"
        share = percent(-left / fit.gpu_memory)
        return f"{fits}: {needed}, and a GPU has {bytes_text(fit.gpu_memory)}, {share} too little"
    share = percent(left / fit.gpu_memory)
    return f"fits: {needed} of {bytes_text(fit.gpu_memory)}, {share} free"


def times_of(answer: PlanAnswer) -> dict[str, float]:
    """Return the seconds of a step by the names of `PARTS`, as means over all GPUs."""
    return {part: getattr(answer.time, part) for part in PARTS}


def details_of(answer: PlanAnswer) -> dict[str, str]:
    """Return the contents of some of `PARTS` in words, without parts that take hardly any time."""
    found = {}
    for whole, parts in DETAILS.items():
        seconds = {words: getattr(answer.time, part) for part, words in parts.items()}
        shown = [
            f"{words} {seconds_text(each)}"
            for words, each in seconds.items()
            if each >= LEAST * answer.step_seconds
        ]
        if shown:
            found[whole] = ", ".join(shown)
    return found


def how_to_use(answer: PlanAnswer) -> Iterator[str]:
    """Yield how to use the lines of changes, how to combine several, and which were tried."""
    changes = sum(loss.change is not None for loss in answer.losses)
    if changes:
        yield KEYS_STAY if changes == 1 else f"{KEYS_STAY} {ONE_BY_ONE}"
    yield from tried_of(answer)


def how_to_fit(found: WhatFits) -> Iterator[str]:
    """Yield how to use the lines of changes that fit, and which were tried."""
    if found.changes:
        yield KEYS_STAY
    yield from tried_of(found)


def tried_of(found: PlanAnswer | WhatFits) -> Iterator[str]:
    """Yield how many layouts were compared, and planned of each kind; nothing if there are none."""
    if not found.compared:
        return
    kinds = sorted(found.tried.items(), key=lambda each: -each[1])
    words = ", ".join(f"{KINDS.get(kind, kind)} {number}" for kind, number in kinds)
    number = sum(found.tried.values())
    planned = f"the best {number} of them planned, by what each changes first: {words}"
    yield (
        f"Tried: {counted(found.compared, 'layout')}, compared by bounds of time and memory; "
        f"{planned if number else 'none of them can help by 2% or more'}."
    )


def losses_of(answer: PlanAnswer) -> Iterator[LossText]:
    """Yield the largest losses, numbered, each with the change that helps most."""
    before, memory = answer.step_seconds, answer.fit.gpu_memory
    for number, loss in enumerate(answer.losses, 1):
        head = f"{number}. {loss.what}"
        if loss.of_all < loss.share:
            head += f" ({percent(loss.of_all)} of all GPU time)"
        change = loss.change
        if change is None:
            none = "nothing of another kind that was tried helps here by 2% or more"
            yield LossText(head=head, helps=none if answer.compared else None, settings=())
            continue
        faster = f"{_times(1 + change.gain)} as fast"
        if change.fuller != 1:
            faster = f"{_times(1 + change.gain)} as many tokens of the data a second"
        step = f"{seconds_text(before)} -> {seconds_text(change.step_seconds)} a step"
        sizes = map(bytes_text, (answer.fit.needed_bytes, change.needed_bytes))
        needed = " -> ".join(dict.fromkeys(sizes))
        free = "" if memory is None else f" ({percent(1 - change.needed_bytes / memory)} free)"
        lines = tuple(lines_of(tree_of(change.settings)))
        helps = f"{faster}, {step}, {needed}{free}: {change.text}{_fuller(change)}"
        yield LossText(head=head, helps=helps, settings=lines)


def _fuller(change: OfferedChange) -> str:
    """Return a clause on how many more tokens a step then holds; "" if it holds the same."""
    if change.fuller == 1:
        return ""
    return f"; a step then holds {_times(change.fuller)} as many tokens of the data"


def _times(number: float) -> str:
    return f"{number:.{1 if number >= 2 else 2}f} times"


def fitting_of(report: Report, found: WhatFits) -> Iterator[LossText]:
    """Yield the changes that make a spec fit, numbered; one line of text if there are none.

    `--apply` takes these numbers.
    """
    tokens, memory = report.header.global_batch * report.header.seq, report.answer.fit.gpu_memory
    if not found.changes:
        none = "nothing of what was tried; take more GPUs"
        yield LossText(head=none, helps=None, settings=())
    for number, change in enumerate(found.changes, 1):
        free = "" if memory is None else f" ({percent(1 - change.needed_bytes / memory)} free)"
        needs = f"{bytes_text(change.needed_bytes)} on the fullest GPUs{free}"
        speed = f"{tokens / change.step_seconds:,.0f} tokens/s"
        step = f"{seconds_text(change.step_seconds)} a step"
        head, helps = f"{number}. {change.text}", f"{needs}, {step}, {speed}"
        lines = tuple(lines_of(tree_of(change.settings)))
        yield LossText(head=head, helps=helps + _fuller(change), settings=lines)


def holders_of(report: Report) -> Iterator[HolderText]:
    """Yield the ranks by the modules that they hold, and how they spend the step."""
    held = {}
    for module in report.modules:
        # The grid, and the settings that changes may name.
        words = [sizes_text(module.grid)]
        words += [
            f"experts {sizes_text({'ep': each.ep, 'tp': each.tp})}"
            for each in report.experts
            if each.module == module.name
        ]
        settings = {
            f"adapter of rank {module.adapter_rank}": module.adapter_rank is not None,
            f"base in {module.quantize_base}": module.quantize_base is not None,
            f"shards over {module.shard_over}": module.shard_over is not None,
            "sharding full": module.sharding == "full",
            "recompute full": module.recompute == "full",
            f"recompute {listed(module.recomputed_parts)}": bool(module.recomputed_parts),
            f"offload {listed(module.offload)}": bool(module.offload),
            "sequence parallel": module.sequence_parallel,
        }
        words += [word for word, holds in settings.items() if holds]
        held[module.name] = f"{module.name} ({', '.join(words)})"
    for names, alike in rows_by_modules(report.estimates).items():
        ranks = sorted(rank for row in alike for rank in row.ranks)
        shares = {
            part: sum(len(row.ranks) * SHARES[part](row) for row in alike) / len(ranks)
            for part in PARTS
        }
        fullest = max(alike, key=lambda row: row.total_bytes)
        needed = bytes_text(fullest.total_bytes)
        what = ", ".join(held[name] for name in names)
        text = f"{named_ranks(ranks)}, {gpus_text(ranks)}, up to {needed}: {what}"
        yield HolderText(text=text, shares=shares, memory=fullest.memory.parts)
