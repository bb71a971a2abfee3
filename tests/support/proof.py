"""Proving a spec inside a test."""

from collections.abc import Callable

from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.compare import ModuleVerdict
from mimo_launch.verify.proof import verify_spec, verify_training_on
from mimo_launch.verify.shrink import short_run, shrink


def verdicts(
    spec: Spec, *, prepare: Callable[[], None] | None = None, timeout_s: float = 60
) -> list[ModuleVerdict]:
    """Return the verdicts of the shrunk spec."""
    return verify_spec(shrink(spec), prepare=prepare, timeout_s=timeout_s)


def training_verdicts(
    spec: Spec, *, prepare: Callable[[], None] | None = None, timeout_s: float = 60
) -> list[ModuleVerdict]:
    """Return the verdicts of a short run of the shrunk spec."""
    short = short_run(spec, shrink(spec))
    with Ranks(world_size(short)) as ranks, Ranks(1) as one_rank:
        return verify_training_on(ranks, one_rank, short, prepare=prepare, timeout_s=timeout_s)


def failures(found: list[ModuleVerdict]) -> list[str]:
    """Return every failure as `module, kind: tensor`."""
    return [f"{v.module}, {v.what}: {failure}" for v in found for failure in v.failures]
