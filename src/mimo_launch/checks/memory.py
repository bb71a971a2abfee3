"""Whether every rank fits into its memory, and the one way in for commands that care.

Decides: how far an estimate may be off before it is an error, and what to change.
Relies on: `checks.all_checks` for every other check; `estimate.estimates` for bytes.
Leaves: showing the findings to `diag.text`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mimo_launch.checks import all_checks
from mimo_launch.checks.all_checks import Checked
from mimo_launch.checks.memory_remedies import remedies
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.diag.quantities import bytes_text, ranks_text
from mimo_launch.estimate.calibration import Calibration
from mimo_launch.estimate.estimates import Estimator, RankClass
from mimo_launch.estimate.rows import MemoryRow
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.model import Spec

# An estimate is to be within 10 % of what is measured: beyond that nothing is left to hope for.
TOLERANCE = 0.10
MAX_REMEDIES = 3


def load_and_check(
    path: str | Path,
    overrides: Sequence[str] = (),
    world: int | None = None,
    *,
    runs_here: bool = False,
    on_gpus: bool = True,
    constants: Calibration | None = None,
) -> Checked:
    """Do what `checks.all_checks` does, and check that every rank fits into the memory of a GPU.

    Without `on_gpus` no rank needs to; `constants` are those of the estimates.
    """
    checked = all_checks.load_and_check(path, overrides, world, runs_here=runs_here)
    return with_memory(checked, constants or Calibration()) if on_gpus else checked


def with_memory(checked: Checked, constants: Calibration) -> Checked:
    """Add what there is to say about memory; a spec with mistakes is returned as it is."""
    if checked.spec is None or checked.spec.nodes is None or checked.spec.nodes.memory is None:
        return checked
    found = tuple(memory_findings(checked.spec, checked.spec.nodes.memory, constants))
    spec = None if any(item.is_error for item in found) else checked.spec
    diagnostics = checked.source.sorted((*checked.diagnostics, *found))
    return replace(checked, spec=spec, diagnostics=diagnostics)


def memory_findings(spec: Spec, limit: int, constants: Calibration) -> Iterator[Diagnostic]:
    """Yield a finding per class of ranks whose estimate comes near `limit` bytes, or passes it."""
    estimator = Estimator.of(Plan.of(spec), constants)
    for alike in estimator.classes:
        memory = estimator.memory(alike)
        if memory.total > (1 + TOLERANCE) * limit:
            yield _finding(
                estimator,
                alike,
                memory,
                code="memory-too-small",
                severity=Severity.ERROR,
                verdict=f"and a GPU has {bytes_text(limit)}",
            )
        elif memory.total > (1 - TOLERANCE) * limit:
            near = "close to" if memory.total <= limit else "which may not fit into"
            yield _finding(
                estimator,
                alike,
                memory,
                code="memory-tight",
                severity=Severity.WARNING,
                verdict=f"{near} the {bytes_text(limit)} of a GPU",
            )


def _finding(
    estimator: Estimator,
    alike: RankClass,
    memory: MemoryRow,
    *,
    code: str,
    severity: Severity,
    verdict: str,
) -> Diagnostic:
    holds = " and ".join(f"`{name}` stage {stage}" for name, stage in alike.role)
    several = len(alike.ranks) > 1
    who = f"rank{'s' * several} {ranks_text(alike.ranks)} ({holds}) need{'s' * (not several)}"
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "transfers": memory.transfers,
        "the rest": memory.workspace + memory.reserve + memory.device,
    }
    shown = ", ".join(f"{bytes_text(size)} {name}" for name, size in parts.items())
    return Diagnostic(
        code=code,
        severity=severity,
        headline=f"{who} about {bytes_text(memory.total)}, {verdict}",
        path=("nodes", "gpu_memory"),
        why=f"estimated for nominal samples: {shown}",
        help=", or ".join(remedies(estimator, alike, memory)[:MAX_REMEDIES]),
        related=tuple(
            Related(path=("modules", name), label=f"on {ranks_text(alike.ranks)}")
            for name in dict.fromkeys(name for name, _ in alike.role)
        ),
    )
