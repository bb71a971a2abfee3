"""`mimo-launch bench`: time steps of a spec and say where the time goes.

Decides: the options.
Relies on: `cli.launch.start` for everything that it shares with `train`: checks, workers, reports
of failures.
Leaves: measuring to `bench`, the answer to `bench_screen`.
"""

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mimo_launch.cli.launch.run_command import RunCommand
from mimo_launch.cli.shared.console import console_of
from mimo_launch.cli.shared.options import (
    CalibrationFile,
    ResultAsJson,
    Runs,
    constants_of,
    shown_ranks,
)
from mimo_launch.diag.frozen import frozen

HELP = """
\b
Examples:
  mimo-launch bench spec.yaml
  mimo-launch bench spec.yaml --steps 50 --set schedule.microbatches=8
  mimo-launch bench spec.yaml --json > bench.json
  mimo-launch bench spec.yaml --compare bench.json
  mimo-launch bench spec.yaml --with-loader
  mimo-launch bench spec.yaml --text-only --json > twin.json
  mimo-launch bench spec.yaml --calibrate h200.json
  mimo-launch bench topologies/quickstart.yaml --device cpu

Run steps of the spec as `train` does, on samples held in memory, and time them after a few warmup
steps: step time, tokens/s, TFLOP/s and MFU; for each rank where the time goes and how much memory
it needs, next to what the plan says. With --with-loader each step reads its own samples while the
step before runs, as in training, and each rank reports how long its steps waited for them. The run
folder RUNS/NAME holds the same in bench.json, and the workers' logs. No weights are saved. With
--text-only the twin of the spec is timed: language alone, with as many positions, all of them text.
With --calibrate the constants of `plan` are measured at the sizes of the spec, for
`plan --calibration`.
Exits with 0 when all steps are timed, 1 when the run failed, 2 when the spec is wrong, 75 when a
host was lost or a rank killed (start it again, elsewhere), 129, 130 or 143 when interrupted.
"""


@frozen(kw_only=True)
class BenchCommand(RunCommand):
    """Time steps of a spec and say where the time goes."""

    steps: Annotated[int, typer.Option(min=1, help="Steps to time.")] = 20
    warmup: Annotated[int, typer.Option(min=0, help="Warmup steps before those.")] = 5
    with_loader: Annotated[
        bool,
        typer.Option(
            "--with-loader",
            help="Read the samples of every step as training does, and report how long steps wait "
            "for them.",
        ),
    ] = False
    text_only: Annotated[
        bool,
        typer.Option(
            "--text-only",
            help="Time language alone: its own ranks, renumbered from 0, its grid and batch, and "
            "text in place of the rows of encoders.",
        ),
    ] = False
    as_json: ResultAsJson = False
    compare: Annotated[
        Path | None, typer.Option(metavar="OLD.json", help="Compare with an earlier result.")
    ] = None
    calibration: CalibrationFile = None
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.json", help="Measure the constants of `plan` instead, and write them here."
        ),
    ] = None
    runs: Runs = Path("runs/bench")

    def __call__(self) -> None:
        """Time steps. Raises: typer.Exit; typer.BadParameter."""
        from mimo_launch.bench.result import BenchOptions
        from mimo_launch.bench.text_twin import NoTwin, text_twin
        from mimo_launch.cli.bench_screen import BenchScreen, load_earlier
        from mimo_launch.cli.launch.prepare import Start
        from mimo_launch.cli.launch.start import start
        from mimo_launch.estimate.device_constants import constants_for
        from mimo_launch.launcher.rank_tasks import Benching, Calibrating
        from mimo_launch.plan.plan import Plan

        console = console_of(self.ctx)
        console.needs_no_reader = True
        if self.calibrate is not None:
            _check_target(
                self.file, self.calibrate, wants_result=self.as_json or self.compare is not None
            )
            if self.with_loader:
                raise typer.BadParameter(
                    "constants are measured on samples in memory", param_hint="--with-loader"
                )
        shown = shown_ranks(self.console_ranks)
        old = None if self.compare is None else load_earlier(self.compare)
        constants = constants_of(self.calibration)
        try:
            spec, origin = self.checked(
                console, constants=constants, change=text_twin if self.text_only else None
            )
        except NoTwin as error:
            raise typer.BadParameter(str(error), param_hint="--text-only") from error
        options = BenchOptions(
            warmup=self.warmup,
            steps=self.steps,
            with_loader=self.with_loader,
            twin_of=str(self.file) if self.text_only else None,
            calibration=constants_for(spec.nodes, constants),
            command=shlex.join(["mimo-launch", *sys.argv[1:]]),
        )
        out = self.calibrate
        request = Start(
            plan=Plan.of(spec),
            task=Benching(options) if out is None else Calibrating(options, out),
            file=self.file,
            runs=self.runs,
            say=console.note,
            show=partial(
                BenchScreen, console, steps=self.warmup + self.steps, as_json=self.as_json, old=old
            ),
            resume=False,
            shown=shown,
            device=self.device.value,
        )
        raise typer.Exit(start(request, origin, console))


def _check_target(spec_file: Path, out: Path, *, wants_result: bool) -> None:
    """Before minutes of measuring, refuse a file that cannot be written.

    Raises: typer.BadParameter.
    """
    if wants_result:
        problem = "constants are measured instead of a result for --json or --compare"
    elif out.resolve() == spec_file.resolve():
        problem = f"{out} would be written over the spec"
    elif not out.parent.is_dir():
        problem = f"there is no folder {out.parent}"
    elif out.is_dir():
        problem = f"{out} is a folder"
    elif not os.access(place := out if out.exists() else out.parent.resolve(), os.W_OK):
        problem = f"{place} may not be written"
    else:
        return
    raise typer.BadParameter(problem, param_hint="--calibrate")
