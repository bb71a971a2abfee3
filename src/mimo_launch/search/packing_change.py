"""Packing as a change of a spec: what padding loses, and how many tokens a second packing gains.

Decides: for which specs packing is offered; how a packed spec is made to fit.
Relies on: `data.expected_steps` for the run's own steps with packing, `moves.lighter` for layouts
that need less memory, `checks` for what is legal.
Leaves: changes of the layout, which leave the samples of a step as they are, to `advice`.
"""

from collections.abc import Iterator
from itertools import islice

from mimo_launch.checks.all_checks import is_legal
from mimo_launch.data.expected_steps import WORTH_PACKING, ExpectedSteps
from mimo_launch.data.fact_source import Source
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import percent
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.layout.space import Point
from mimo_launch.plan.plan import Plan
from mimo_launch.search.changes import Change, changed
from mimo_launch.search.judge import Planned
from mimo_launch.search.ladders import lighter
from mimo_launch.search.wastes import LEAST, SHARES, Waste, gpus_text, language_share
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec, UserData

PACKING = "data.packing"
# Layouts of a packed spec that are planned until one fits.
_MOST_PLANS = 12


@frozen
class Packed:
    """A packed spec that fits; `fuller` is how many times as many tokens its steps hold."""

    planned: Planned
    fuller: float


def padding_waste(estimator: Estimator, estimates: Estimates) -> Waste | None:
    """Return the time that language spends on positions without a token of a user's data."""
    padding, world = estimator.expected.padding, estimator.layout.world_size
    if not _may_pack(estimator) or padding < LEAST:
        return None
    rows = [row for row in estimates.ranks if any(s.module == LANGUAGE for s in row.stages)]
    ranks = tuple(sorted(rank for row in rows for rank in row.ranks))
    lost = padding * sum(
        len(row.ranks) * SHARES["computing"](row) * language_share(row) for row in rows
    )
    share = lost / len(ranks)
    return Waste(
        kind="pads",
        modules=(LANGUAGE,),
        ranks=ranks,
        share=share,
        of_all=lost / world,
        text=f"language computes padding {percent(share)} on {gpus_text(ranks)}",
    )


def packed(estimator: Estimator, limit: int) -> Packed | None:
    """Return the spec with packing, made lighter if it needs more than `limit` bytes.

    None if packing does not fill sequences by much, or if nothing that was planned fits.
    """
    now, spec = estimator.expected, estimator.spec
    if not _may_pack(estimator) or _full(now, packing=True) < WORTH_PACKING * _full(now):
        return None
    for change in islice(filter(_is_legal, _changes(spec)), _MOST_PLANS):
        made = estimator.on(Plan.of(change.spec))
        if all(made.memory(each).total <= limit for each in made.classes):
            fuller = (1 - made.expected.padding) / (1 - now.padding)
            return Packed(Planned(change, made.estimates()), fuller)
    return None


def _may_pack(estimator: Estimator) -> bool:
    data, expected = estimator.spec.data, estimator.expected
    knows = not estimator.worst and expected.source is not Source.GUESS
    return isinstance(data, UserData) and not data.packing and knows


def _full(expected: ExpectedSteps, *, packing: bool = False) -> float:
    return 1 - expected.padding_with(packing=packing)


def _changes(spec: Spec) -> Iterator[Change]:
    """Yield the spec with packing, then with settings that need less memory, too."""
    now = Point.of(spec)
    for point in (now, *lighter(spec, now)):
        settings = {} if point is now else point.settings()
        if (change := changed(spec, "packing", {**settings, PACKING: True})) is not None:
            yield change


def _is_legal(change: Change) -> bool:
    return is_legal(change.spec, files=False)
