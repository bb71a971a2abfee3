"""What only estimates show of a sound spec: whether it fits into its GPUs, and whether FP8 pays.

Decides: which of these are looked at, for a plan and for a run.
Relies on: `memory` for what ranks need, `slow_fp8` for what FP8 gains.
Leaves: the rules, which need no estimates, to `all_checks`.
"""

from mimo_launch.checks.memory import memory_findings
from mimo_launch.checks.mixtures import tokens_do_not_mix
from mimo_launch.checks.slow_fp8 import fp8_findings
from mimo_launch.data.order.block_counts import BadMixture
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.diag.text import has_errors
from mimo_launch.estimate.device_constants import Calibration, constants_for
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec


def estimated(
    spec: Spec, constants: Calibration | None, *, only_plans: bool
) -> tuple[Estimator | None, tuple[Diagnostic, ...]]:
    """Return the estimates of a sound spec, None if no finding needs them, and the findings.

    With `only_plans` there are always estimates, and nothing about FP8: `plan` advises that change.
    """
    constants, plan = constants_for(spec.nodes, constants), Plan.of(spec)
    estimator, found = None, tuple[Diagnostic, ...]()
    if only_plans or spec.gpu_memory is not None:
        try:
            estimator = Estimator.of(plan, constants)
        except BadMixture as error:
            return None, (tokens_do_not_mix(error),)
        found = tuple(memory_findings(estimator))
    if not only_plans and not has_errors(found):
        found += tuple(fp8_findings(plan, constants))
    return estimator, found
