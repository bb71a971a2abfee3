"""Checks that the optional packages a spec makes use of are installed.

Decides: which setting needs which package, and that a run that cannot log as asked does not start.
Relies on: Python's finders, which know a package without importing it.
Leaves: whether a package works to the run.
"""

import importlib.util

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.spec.model import Spec

# The bounds of the extras in pyproject.toml, which a test compares.
TENSORBOARD = "tensorboard>=2.14"
WANDB = "wandb>=0.17"


def log_packages_installed(spec: Spec) -> Findings:
    """TensorBoard and Weights & Biases are optional packages."""
    if spec.log.tensorboard and not is_installed("tensorboard"):
        yield _missing("tensorboard", "TensorBoard event files", TENSORBOARD, "false")
    if spec.log.wandb is not None and not is_installed("wandb"):
        yield _missing("wandb", "reports to Weights & Biases", WANDB, "null")


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; a bare folder of its name is not a package."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def _missing(key: str, what: str, requirement: str, off: str) -> Diagnostic:
    package = requirement.partition(">")[0]
    return Diagnostic(
        code="missing-package",
        headline=f"`{package}` is not installed",
        path=("log", key),
        why=f"`log.{key}` asks for {what}, which this package writes",
        help=f"pip install '{requirement}', or leave it out with --set log.{key}={off}",
    )
