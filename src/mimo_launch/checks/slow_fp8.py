"""A warning where FP8 makes a step slower than bf16, as with small microbatches.

Decides: how much slower is worth a warning.
Relies on: `estimate` for both steps.
Leaves: offering FP8 where it pays, and the same change beside others, to `search.fp8_change`.
"""

from collections.abc import Iterator

from mimo_launch.checks import all_checks
from mimo_launch.diag.diagnostic import Diagnostic, Severity
from mimo_launch.diag.quantities import percent, seconds_text
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.base import LANGUAGE

# As `plan` advises no change that saves less.
_LEAST = 0.02


def fp8_findings(plan: Plan, constants: Calibration) -> Iterator[Diagnostic]:
    """Yield a finding if language takes longer in FP8 than in bf16, in the typical step."""
    spec = plan.spec
    if spec.language.fp8 is None:
        return
    in_bf16 = spec.language.model_copy(update={"fp8": None, "backend": "torch"})
    changed = spec.model_copy(update={"modules": {**spec.modules, LANGUAGE: in_bf16}})
    if not all_checks.is_legal(changed, files=False):
        return
    estimator = Estimator.of(plan, constants).brief
    now, then = estimator.estimates(), estimator.on(Plan.of(changed)).brief.estimates()
    if then.step_seconds > (1 - _LEAST) * now.step_seconds:
        return
    limits = ": the host starts its kernels more slowly than they run"
    yield Diagnostic(
        code="fp8-slower",
        severity=Severity.WARNING,
        headline=f"`{LANGUAGE}` takes longer in FP8 than in bf16: about "
        f"{seconds_text(now.step_seconds)} a step, and {seconds_text(then.step_seconds)} in bf16",
        path=("modules", LANGUAGE, "fp8"),
        why=f"estimated for {estimator.expected.basis}{limits * (_waits(now) > _waits(then))}",
        help=f"write `fp8: null` and `backend: torch` in `{LANGUAGE}`, which saves "
        f"{percent(1 - then.step_seconds / now.step_seconds)}; or give a microbatch more samples",
    )


def _waits(estimates: Estimates) -> float:
    """Return the largest share of a step in which a rank waits for its host."""
    return max(row.starting for row in estimates.ranks)
