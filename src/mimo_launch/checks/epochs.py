"""The steps of a run that counts epochs, and what its schedule must hold then.

Decides: what is said where the samples of an epoch cannot be counted.
Relies on: `data.run_length` for the number of steps.
Leaves: making an index that counts samples to `train` and `data`.
"""

from collections.abc import Callable

from mimo_launch.checks.all_checks import STEP_RULES
from mimo_launch.checks.rule import run_rules
from mimo_launch.data.run_length import ANEW, Begun, SamplesUnknown, with_steps
from mimo_launch.diag.diagnostic import Diagnostic, Severity
from mimo_launch.spec.spec import Spec


def counted(
    spec: Spec, begun_by: Callable[[Spec], Begun] | None = None
) -> tuple[Spec, tuple[Diagnostic, ...]]:
    """Return a sound spec with the steps of its epochs, and findings about these steps.

    `begun_by` returns what the run has done. It is called only for epochs: every rank looks at the
    checkpoints then, and ranks that find different ones have different plans, which ends the run.
    Without a number of samples the spec keeps its steps, with a warning: other findings, or the
    making of an index, say why a run cannot start.
    """
    if spec.train.epochs is None:
        return spec, ()
    try:
        spec = with_steps(spec, ANEW if begun_by is None else begun_by(spec))
    except SamplesUnknown:
        return spec, _unknown(spec, "there are no samples here that could be counted")
    except (OSError, ValueError) as error:
        return spec, _unknown(spec, str(error))
    return spec, tuple(run_rules(spec, STEP_RULES))


def _unknown(spec: Spec, why: str) -> tuple[Diagnostic, ...]:
    if spec.train.are_steps_known:  # The user has said how many there are at most.
        return ()
    found = Diagnostic(
        code="epochs-not-counted",
        severity=Severity.WARNING,
        headline=f"`epochs: {spec.train.epochs:g}` is an unknown number of steps",
        path=("train", "epochs"),
        why=f"{why}; a plan goes by {spec.train.steps} steps",
        help=f"write `steps: {spec.train.steps}`, or as many as you want",
    )
    return (found,)
