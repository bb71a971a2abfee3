"""Checks that the optional packages that a spec uses are installed.

Decides: which setting needs which package; that a run that cannot log as the spec says does not
start.
Relies on: Python's finders, which find a package without importing it.
Leaves: whether a package works to the run.
"""

import importlib.util
from collections.abc import Iterator

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.spec.spec import (
    Spec,
    WebdatasetData,
)

ENGINE = "transformer_engine"
# The bounds of the extras in pyproject.toml, which a test compares.
TENSORBOARD = "tensorboard>=2.14"
WANDB = "wandb>=0.17"
MLFLOW = "mlflow-skinny>=2.16"
SHARD_PACKAGES = {
    "webdataset": "webdataset>=1.0",
    "tokenizers": "tokenizers>=0.21",
    "PIL": "pillow>=10",
    "jinja2": "jinja2>=3.1",
}
AV = "av>=14"
TRANSFORMER_ENGINE = "transformer-engine[pytorch]>=2.20"


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; a bare folder of its name is not a package."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def log_packages_installed(spec: Spec) -> Findings:
    """TensorBoard, Weights & Biases and MLflow are optional packages."""
    if spec.log.tensorboard and not is_installed("tensorboard"):
        yield _missing("tensorboard", "TensorBoard event files", TENSORBOARD, "false")
    if spec.log.wandb is not None and not is_installed("wandb"):
        yield _missing("wandb", "reports to Weights & Biases", WANDB, "null")
    if spec.log.mlflow is not None and not is_installed("mlflow"):
        yield _missing("mlflow", "reports to MLflow", MLFLOW, "null")


def _missing(key: str, what: str, requirement: str, off: str) -> Diagnostic:
    package = requirement.partition(">")[0]
    return Diagnostic(
        code="missing-package",
        headline=f"`{package}` is not installed",
        path=("log", key),
        why=f"`log.{key}` asks for {what}, which this package writes",
        help=f"pip install '{requirement}', or leave it out with --set log.{key}={off}",
    )


def shard_packages_installed(spec: Spec) -> Findings:
    """Decoders and tokenizers are optional packages."""
    if not isinstance(spec.data, WebdatasetData):
        return
    missing = [needed for name, needed in SHARD_PACKAGES.items() if not is_installed(name)]
    if missing:
        yield Diagnostic(
            code="missing-package",
            headline=f"`{missing[0].partition('>')[0]}` is not installed",
            path=("data", "kind"),
            why="shards are read with it",
            help="pip install " + " ".join(f"'{each}'" for each in missing),
        )


def backends_are_here(spec: Spec) -> Iterator[Diagnostic]:
    """Every backend is installed on the host that uses it."""
    for name, module in spec.modules.items():
        if module.backend == ENGINE and not is_installed(ENGINE):
            yield Diagnostic(
                code="missing-package",
                headline="`transformer-engine` is not installed",
                path=("modules", name, "backend"),
                why=f"`{name}` takes its layers from it",
                help=f"pip install '{TRANSFORMER_ENGINE}', or use torch's layers with "
                + torchs_layers(spec, name),
            )


def torchs_layers(spec: Spec, name: str) -> str:
    """Return the command-line options that give a module torch's layers."""
    eight_bits = "" if spec.modules[name].fp8 is None else f" --set modules.{name}.fp8=null"
    return f"--set modules.{name}.backend=torch{eight_bits}"
