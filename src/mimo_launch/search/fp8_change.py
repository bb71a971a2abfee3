"""FP8 as a change of a spec: on where the estimates say that it pays by far, off where it does not.

Decides: what "by far" is. Estimates of Transformer Engine are the least exact ones, most of all
where its host limits a step, so FP8 is offered only if kernels do; going back takes less.
Relies on: the rates of FP8 products and the time of hosts in `estimate`, `bounds` before a plan,
`checks` for what is legal.
Leaves: changes that compute the same numbers to `advice`.
"""

from mimo_launch.checks.all_checks import is_legal
from mimo_launch.diag.quantities import percent
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates, RankEstimate
from mimo_launch.plan.plan import Plan
from mimo_launch.search.advice import LEAST_GAIN
from mimo_launch.search.bounds import least_seconds
from mimo_launch.search.changes import Settings, changed
from mimo_launch.search.judge import Planned
from mimo_launch.search.wastes import LEAST, Waste
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec

# More than estimates of FP8 steps are wrong.
_LEAST_GAIN_OF_FP8 = 0.1
# If the device waits for the host for this share, faster kernels may gain nothing.
_MOST_WAITING = 0.05


def fp8_change(
    estimator: Estimator, estimates: Estimates, limit: int
) -> tuple[Waste, Planned] | None:
    """Return the change between FP8 and bf16 that makes language faster, and what it answers.

    The changed spec needs at most `limit` bytes on a rank.
    """
    spec = estimator.spec
    change = changed(spec, "precision", _settings(spec))
    if change is None or not is_legal(change.spec, files=False):
        return None
    is_off = spec.language.fp8 is not None
    most = estimates.step_seconds / (1 + (LEAST_GAIN if is_off else _LEAST_GAIN_OF_FP8))
    made = estimator.on(Plan.of(change.spec))
    if least_seconds(estimator.brief.on(made.plan)) > most or any(
        made.memory(each).total > limit for each in made.classes
    ):
        return None
    planned = Planned(change, made.estimates())
    rows = [row for row in estimates.ranks if _holds_language(row)]
    waits = max(row.starting for row in planned.estimates.ranks if _holds_language(row))
    if planned.estimates.step_seconds > most or (waits >= _MOST_WAITING and not is_off):
        return None
    saved = 1 - planned.estimates.step_seconds / estimates.step_seconds
    starts = max(row.starting for row in rows) - waits >= LEAST
    now, other = ("FP8", "bf16") if is_off else ("bf16", "FP8")
    why = ", whose kernels its host starts more slowly" if starts else ""
    waste = Waste(
        kind="precision",
        modules=(LANGUAGE,),
        ranks=tuple(sorted(rank for row in rows for rank in row.ranks)),
        share=saved,
        of_all=saved,
        text=f"language computes in {now}{why}; with {other} a step takes {percent(saved)} less",
    )
    return waste, planned


def _holds_language(row: RankEstimate) -> bool:
    return any(stage.module == LANGUAGE for stage in row.stages)


def _settings(spec: Spec) -> Settings:
    """Return the settings that turn FP8 on or off; none without a name of the GPUs."""
    here = f"modules.{LANGUAGE}"
    if spec.language.fp8 is not None:
        return {f"{here}.backend": "torch", f"{here}.fp8": None}
    if spec.nodes is None or spec.nodes.gpu is None:
        return {}
    return {f"{here}.backend": "transformer_engine", f"{here}.fp8": {}}
