"""Turns a file into a spec that can run, or into a list of everything that is wrong with it.

Decides: that memory and time are estimated only for a spec without errors; that the absence of
files is a warning where no run starts.
Relies on: `spec.load` for the file, `all_checks` for the rules, `estimated` for what only estimates
show.
Leaves: showing the findings to `diag.text`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.epochs import counted
from mimo_launch.checks.packages import backends_are_here
from mimo_launch.data.run_length import Begun
from mimo_launch.diag.diagnostic import Diagnostic, Severity, SpecSource
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.text import has_errors
from mimo_launch.spec.load import Loaded, load_spec, load_text
from mimo_launch.spec.overrides import in_order
from mimo_launch.spec.spec import Spec

if TYPE_CHECKING:
    from mimo_launch.estimate.device_constants import Calibration
    from mimo_launch.estimate.estimates import Estimator


@frozen
class Checked:
    """A spec that passed every check, warnings aside, or None; and the findings in file order.

    `unfit` is a spec without errors except that it does not fit into the memory of GPUs.
    `estimator` has the estimates of either, kept because they take time; None for a spec with other
    errors, and if nothing was estimated.
    """

    spec: Spec | None
    diagnostics: tuple[Diagnostic, ...]
    source: SpecSource
    unfit: Spec | None = None
    estimator: "Estimator | None" = None


def load_and_check(
    path: str | Path,
    overrides: Sequence[str] = (),
    world: int | None = None,
    *,
    runs_here: bool = False,
    on_gpus: bool = True,
    constants: "Calibration | None" = None,
    only_plans: bool = False,
    change: Callable[[Spec], Spec] | None = None,
    begun_by: Callable[[Spec], Begun] | None = None,
) -> Checked:
    """Read a file, apply `path=value` overrides and run every check.

    With `runs_here` the backends must be installed. With `on_gpus` every rank must fit into the
    memory of a GPU, which is estimated with `constants`. With `only_plans` the absence of a file is
    a warning: plans need no data and no weights. `change`, if given, gets a spec without errors,
    absent files aside, and returns the one to check in its place. `begun_by`, if given, returns
    what the run has done; the steps of epochs go on from there.

    Raises: what `change` raises.
    """
    loaded = load_spec(path, overrides)
    if change is not None:
        before = _checked(loaded, None, runs_here=False, only_plans=True)
        if before.spec is None:
            return before
        made = change(before.spec)
        loaded = replace(loaded, spec=made, partial=made)
    return _checked(
        loaded,
        world,
        runs_here=runs_here,
        only_plans=only_plans,
        on_gpus=on_gpus,
        constants=constants,
        begun_by=begun_by,
    )


def check_text(
    text: str,
    name: str = "<text>",
    overrides: Sequence[str] = (),
    world: int | None = None,
    *,
    only_plans: bool = False,
) -> Checked:
    """Run every rule on a text in memory, without estimates."""
    loaded = load_text(text, name, overrides)
    return _checked(loaded, world, runs_here=False, only_plans=only_plans)


def _checked(
    loaded: Loaded,
    world: int | None,
    *,
    runs_here: bool,
    only_plans: bool,
    on_gpus: bool = False,
    constants: "Calibration | None" = None,
    begun_by: Callable[[Spec], Begun] | None = None,
) -> Checked:
    """Run every rule; with `on_gpus`, look at estimates as well."""
    found, spec = loaded.diagnostics, loaded.spec
    if loaded.partial is not None:
        of_rules = check(loaded.partial, world=world)
        if only_plans:
            of_rules = tuple(
                replace(each, severity=Severity.WARNING) if each.is_absence else each
                for each in of_rules
            )
        found += of_rules
    if spec is not None and runs_here:
        found += tuple(backends_are_here(spec))
    if spec is not None and not has_errors(found):
        spec, of_epochs = counted(spec, begun_by)
        found += of_epochs
    unfit, estimator = None, None
    if spec is not None and not has_errors(found) and on_gpus and (only_plans or _judges(spec)):
        # All that estimates is imported only here: it would be an eighth of the time of `validate`.
        from mimo_launch.checks.estimated import estimated

        estimator, of_estimates = estimated(spec, constants, only_plans=only_plans)
        unfit = spec if estimator is not None and has_errors(of_estimates) else None
        found += of_estimates
    is_valid = spec is not None and not has_errors(found)
    return Checked(
        spec if is_valid else None, in_order(found, loaded.source), loaded.source, unfit, estimator
    )


def _judges(spec: Spec) -> bool:
    """Return whether a run of a sound spec may be wrong by its estimates."""
    has_fp8 = any(module.fp8 is not None for module in spec.modules.values())
    return spec.gpu_memory is not None or has_fp8
