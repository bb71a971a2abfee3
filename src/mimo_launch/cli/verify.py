"""`mimo-launch verify`: proves that a layout trains as one rank does.

Decides: the output, and the exit code. Checkpoints of the proof are in a temporary folder.
Relies on: `verify` to shrink a spec, to run it and to compare.
Leaves: nothing.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.launch.attempts import interrupted_by
from mimo_launch.cli.shared.console import Console, console_of, table_width
from mimo_launch.cli.shared.options import Device, Overrides, ResultAsJson, Where, device_here
from mimo_launch.cli.shared.readiness import custom_classes_fail, sound_spec
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.drawing.table import Table
    from mimo_launch.spec.spec import Spec
    from mimo_launch.verify.compare import ModuleVerdict

HELP = """
\b
Examples:
  mimo-launch verify topologies/quickstart.yaml
  mimo-launch verify spec.yaml --set modules.vision.grid.tp=2
  mimo-launch verify spec.yaml --device cuda
  mimo-launch verify spec.yaml --device cuda --precision fp32
  mimo-launch verify spec.yaml --json

Run the spec in float64 on this machine's processors, or on a GPU per rank, with its grids,
placement and schedule but small widths and depths, and the same on one rank of a processor as a
plain loop. First two steps: compare the loss, the gradient norm of each module, every gradient by
name and the weights after an SGD step. Then training with your optimizer, learning rates and
evaluation: a few steps, one of which is skipped, a checkpoint, and a run that goes on from it;
compare every reported number, and at the end weights, moments and what generators make of held-out
samples. All to a relative error of 1e-10, pictures to that of float32. In float32 only gradients
are compared, to 1e-3: a weaker proof, of the kernels that float64 does not use. Lists what the
proof leaves out or scales down. Exits with 0 when everything agrees, 1 when it does not, 2 when the
spec is wrong, 129, 130 or 143 when interrupted.
"""


class ProofPrecision(StrEnum):
    """The precision of the ranks; the one-rank run always computes in float64."""

    FP64 = "fp64"
    FP32 = "fp32"


_BOUNDS = {
    ProofPrecision.FP64: "relative error at most 1e-10, float64",
    ProofPrecision.FP32: "relative error at most 1e-3, float32: a weaker proof than in float64",
}


@frozen(kw_only=True)
class VerifyCommand:
    """Prove that a layout computes the right gradients, and trains correctly."""

    ctx: typer.Context
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Spec to prove.")]
    device: Where = Device.CPU
    precision: Annotated[
        ProofPrecision,
        typer.Option(help="fp64 proves to 1e-10; fp32 to 1e-3, which small mistakes pass."),
    ] = ProofPrecision.FP64
    overrides: Overrides = None
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which a rank that hangs is an error.")
    ] = 120
    as_json: ResultAsJson = False

    def __call__(self) -> None:
        """Prove, and show the verdicts. Raises: typer.Exit; typer.BadParameter."""
        import json
        from dataclasses import asdict

        from mimo_launch.cli.shared.plain_table import PlainTable
        from mimo_launch.cli.shared.styled import printed
        from mimo_launch.verify.coverage import lines_of, not_proved, not_reached

        console = console_of(self.ctx)
        spec = sound_spec(self.file, self.overrides, console)
        small, verdicts = self._prove(spec, console)
        passed = all(verdict.passed for verdict in verdicts)
        remarks = [*not_proved(spec, small), *not_reached(verdicts)]
        if self.as_json:
            record = {
                "version": 1,
                "passed": passed,
                "spec": small.model_dump(mode="json", by_alias=True),
                "verdicts": [asdict(verdict) for verdict in verdicts],
                "not_proved": [asdict(remark) for remark in remarks],
            }
            console.answer(json.dumps(record, indent=2))
        else:
            colors = console.colors(sys.stdout)
            table = printed([PlainTable(_table(verdicts))], table_width(), colors=colors)
            console.answer(table, painted=colors)
            console.answer(
                f"{self.file}: "
                + ("every layout tensor equals the one-rank run" if passed else "MISMATCH")
                + f" ({_BOUNDS[self.precision]})"
            )
            for verdict in verdicts:
                for failure in verdict.failures[:10]:
                    console.note(f"  {verdict.module}, {verdict.what}: {failure}")
            for line in lines_of(remarks):
                console.answer(line)
        raise typer.Exit(0 if passed else 1)

    def _prove(self, spec: "Spec", console: Console) -> tuple["Spec", list["ModuleVerdict"]]:
        """Shrink the spec, show it, run it; return the small spec and the verdicts on it.

        Raises: typer.Exit, typer.BadParameter.
        """
        import os

        import yaml

        # Before torch's first parallel region: a forked rank would hang in the pool of its parent.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        from mimo_launch.checks.all_checks import check
        from mimo_launch.launcher.forking import import_for_workers
        from mimo_launch.launcher.run_on_ranks import RankError
        from mimo_launch.launcher.signals import Interrupted, interrupting
        from mimo_launch.layout.layout import world_size
        from mimo_launch.verify.proof import verify_spec
        from mimo_launch.verify.shrink import short_run, shrink

        import_for_workers()
        ended = custom_classes_fail(spec, console)
        if ended is not None:
            raise typer.Exit(ended)
        try:
            small = shrink(spec, self.precision.value)
            # In float32, AdamW turns noise into updates where a gradient is zero: no proof.
            training = short_run(spec, small) if self.precision is ProofPrecision.FP64 else None
            proved = training or small
            for finding in check(proved):
                if finding.is_error:
                    raise ValueError(finding.headline)
        except ValueError as error:
            console.note(f"the spec cannot be proved small: {error}")
            raise typer.Exit(1) from None
        place = device_here(small, self.device.value, world_size(small))
        if not self.as_json:
            data = proved.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None).rstrip()
            console.note(f"# proving this spec on {world_size(small)} ranks:\n{text}")
        try:
            with interrupting():
                return proved, verify_spec(
                    small, training=training, timeout_s=self.timeout, device=place
                )
        except RankError as error:
            console.note(f"the proof did not end: {error}")
            raise typer.Exit(1) from None
        except Interrupted as interrupted:
            raise typer.Exit(interrupted_by(interrupted.signal, console)) from None


def _table(verdicts: list["ModuleVerdict"]) -> "Table":
    """Return the verdicts as a table; those that differ are marked."""
    from mimo_launch.drawing.table import Column, Table

    columns = (
        Column("module"),
        Column("compared", "what"),
        Column("tensors"),
        Column("largest relative error", "worst", "{:.1e}".format),
        Column("by floor", "by_floor"),
        Column("result", lambda verdict: "equal" if verdict.passed else "DIFFERS"),
    )
    differ = frozenset(number for number, each in enumerate(verdicts) if not each.passed)
    return Table(columns, verdicts, differ)
