"""Proving a spec inside a test."""

from collections.abc import Callable

from mimo_launch.spec.model import Spec
from mimo_launch.verify.compare import ModuleVerdict
from mimo_launch.verify.run import verify_spec
from mimo_launch.verify.shrink import shrink


def verdicts(
    spec: Spec, *, prepare: Callable[[], None] | None = None, timeout_s: float = 60
) -> list[ModuleVerdict]:
    """Return the verdicts of the shrunk spec."""
    return verify_spec(shrink(spec), prepare=prepare, timeout_s=timeout_s)


def failures(found: list[ModuleVerdict]) -> list[str]:
    """Return every failure as `module, kind: tensor`."""
    return [f"{v.module}, {v.what}: {failure}" for v in found for failure in v.failures]
