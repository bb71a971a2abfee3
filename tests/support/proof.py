"""Proving a spec inside a test."""

from collections.abc import Callable

from tests.support.running_ranks import running_ranks

from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.compare import ModuleVerdict
from mimo_launch.verify.proof import verify_on, verify_training_on
from mimo_launch.verify.shrink import short_run, shrink


def verdicts(
    spec: Spec,
    *,
    steps: int = 1,
    prepare: Callable[[], None] | None = None,
    timeout_s: float = 60,
) -> list[ModuleVerdict]:
    """Return the verdicts of the shrunk spec.

    One step shows what a layout gets wrong. A second one shows what the first leaves behind: it
    takes as long again, and topologies and random specs have it.
    """
    small = shrink(spec)
    small = small.replace(train=small.train.replace(steps=steps))
    return verdicts_as_it_is(small, prepare=prepare, timeout_s=timeout_s)


def verdicts_as_it_is(
    spec: Spec, *, prepare: Callable[[], None] | None = None, timeout_s: float = 60
) -> list[ModuleVerdict]:
    """Return the verdicts of an SGD spec; what `prepare` plants, it plants on new ranks."""
    Plan.of(spec).prove()
    if prepare is None:
        ranks = running_ranks(world_size(spec))
        return verify_on(ranks, running_ranks(1), spec, timeout_s=timeout_s)
    with Ranks(world_size(spec)) as ranks:
        return verify_on(ranks, running_ranks(1), spec, timeout_s=timeout_s, prepare=prepare)


def training_verdicts(
    spec: Spec, *, prepare: Callable[[], None] | None = None, timeout_s: float = 60
) -> list[ModuleVerdict]:
    """Return the verdicts of a short run of the shrunk spec."""
    short = short_run(spec, shrink(spec))
    if prepare is None:
        ranks = running_ranks(world_size(short))
        return verify_training_on(ranks, running_ranks(1), short, timeout_s=timeout_s)
    with Ranks(world_size(short)) as ranks:
        return verify_training_on(
            ranks, running_ranks(1), short, prepare=prepare, timeout_s=timeout_s
        )


def failures(found: list[ModuleVerdict]) -> list[str]:
    """Return every failure as `module, kind: tensor`."""
    return [f"{v.module}, {v.what}: {failure}" for v in found for failure in v.failures]
