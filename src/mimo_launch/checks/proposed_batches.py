"""Proposes what to change rather than the batch where the samples of a step do not divide.

Decides: what is offered, and in which order: groups of microbatches, fewer microbatches, another
grid on the same ranks or fewer ranks, and the batch last, on which what is learned depends.
Relies on: the rules about sizes, which judge every candidate.
Leaves: the batch that fits to `batch`.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from mimo_launch.checks.proposed_grids import faults, nearest_grids, show_grid
from mimo_launch.checks.rule import Rule, divisors, show_ranks
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.layout.samples import grouped_encoders, shares_ranks
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import MissingPartError, Spec

_CODES = ("batch-not-divisible", "encoder-share-uneven")
_MOST_TRIED = 200

# A line to write, and the spec with it.
Offer = tuple[str, Spec]


def with_shares(
    spec: Spec, findings: Sequence[Diagnostic], rules: Sequence[Rule]
) -> list[Diagnostic]:
    """Return findings whose help offers each way that ends them and leads to no new finding."""
    return [
        replace(item, help=_help(spec, item, rules)) if item.code in _CODES else item
        for item in findings
    ]


def _help(spec: Spec, item: Diagnostic, rules: Sequence[Rule]) -> str:
    name = str(item.path[1]) if item.path[0] == "modules" else LANGUAGE
    left = faults(spec, rules) - {(item.code, item.path)}
    lines: list[str] = []
    for way in (_groups(spec, name), _fewer(spec), _grids(spec, name)):
        tried = islice(way, _MOST_TRIED)
        fitting = (line for line, changed in tried if faults(changed, rules) <= left)
        with suppress(MissingPartError):
            lines += islice(fitting, 1)
    return "write " + ", or ".join([*lines, item.help.removeprefix("write ")])


def _groups(spec: Spec, name: str) -> Iterator[Offer]:
    """Yield larger groups of microbatches, the smallest first, for a module that takes groups."""
    if name in spec.generators and shares_ranks(spec, name):
        key = "generator_microbatches"
    elif name in grouped_encoders(spec):
        key = "encoder_microbatches"
    else:
        return
    for size in divisors(spec.schedule.microbatches):
        yield f"`{key}: {size}` in `schedule`", _scheduled(spec, {key: size})


def _fewer(spec: Spec) -> Iterator[Offer]:
    """Yield fewer microbatches, the most first."""
    for number in reversed(divisors(spec.batch.global_)):
        if number < spec.schedule.microbatches:
            yield f"`microbatches: {number}`", _scheduled(spec, {"microbatches": number})


def _grids(spec: Spec, name: str) -> Iterator[Offer]:
    """Yield other grids on the same ranks, the nearest first; then fewer ranks."""
    module, ranks = spec.modules[name], spec.modules[name].rank_range
    for grid in nearest_grids(module.grid, len(ranks)):
        if grid.cp != module.grid.cp:
            continue  # It cuts long sequences, not batches.
        yield f"`{show_grid(grid)}` for `{name}`", _changed(spec, name, grid=grid)
    unit = module.grid.num_ranks // module.grid.dp
    for dp in range(min(module.grid.dp - 1, len(ranks) // unit), 0, -1):
        grid = module.grid.model_copy(update={"dp": dp})
        fewer = show_ranks(ranks[: dp * unit])
        line = f"`ranks: {fewer}` for `{name}` with `{show_grid(grid)}`"
        yield line, _changed(spec, name, ranks=fewer, grid=grid)


def _scheduled(spec: Spec, settings: dict[str, Any]) -> Spec:
    return spec.model_copy(update={"schedule": spec.schedule.model_copy(update=settings)})


def _changed(spec: Spec, name: str, **settings: Any) -> Spec:
    module = spec.modules[name].model_copy(update=settings)
    return spec.model_copy(update={"modules": {**spec.modules, name: module}})
