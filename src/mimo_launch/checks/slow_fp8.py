"""A warning where FP8 makes a step no shorter than bf16, as with small microbatches or in vision.

Decides: how small a gain is worth a warning.
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
from mimo_launch.spec.spec import Spec

# As `plan` advises no change that saves less. Estimates of FP8 leave out some of its costs: where
# they show no gain, vision was measured 9 % slower (docs/performance.md).
_LEAST = 0.02


def fp8_findings(plan: Plan, constants: Calibration) -> Iterator[Diagnostic]:
    """Yield a finding for each module whose FP8 does not shorten the typical step."""
    spec = plan.spec
    for name, module in spec.modules.items():
        if module.fp8 is not None:
            in_bf16 = module.model_copy(update={"fp8": None, "backend": "torch"})
            changed = spec.model_copy(update={"modules": {**spec.modules, name: in_bf16}})
            if all_checks.is_legal(changed, files=False):
                yield from _compared(Estimator.of(plan, constants).brief, changed, name)


def _compared(estimator: Estimator, changed: Spec, name: str) -> Iterator[Diagnostic]:
    """Yield a finding if a step is about as short with a module in bf16, as `changed` says."""
    now, then = estimator.estimates(), estimator.on(Plan.of(changed)).brief.estimates()
    saved = 1 - then.step_seconds / now.step_seconds
    if saved <= -_LEAST:
        return
    is_longer = saved >= _LEAST
    if is_longer:
        headline, saves = "takes longer in FP8 than in bf16", f", which saves {percent(saved)}"
    else:
        headline, saves = "gains nothing from FP8", ""
    limits = ": the host starts its kernels more slowly than they run"
    yield Diagnostic(
        code="fp8-slower",
        severity=Severity.WARNING,
        headline=f"`{name}` {headline}: about {seconds_text(now.step_seconds)} a step, and "
        f"{seconds_text(then.step_seconds)} in bf16",
        path=("modules", name, "fp8"),
        why=f"estimated for {estimator.expected.basis}{limits * (_waits(now) > _waits(then))}",
        help=f"write `fp8: null` and `backend: torch` in `{name}`{saves}; or give a microbatch "
        "more samples",
    )


def _waits(estimates: Estimates) -> float:
    """Return the largest share of a step in which a rank waits for its host."""
    return max(row.starting for row in estimates.ranks)
