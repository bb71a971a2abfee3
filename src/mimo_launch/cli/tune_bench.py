"""Runs the first layouts of `tune --bench K`, and ranks all of them again.

Decides: that each runs as `bench` runs a spec, for a few steps; where its files are.
Relies on: `mimo-launch bench` in a process of its own; `search.correction` for what runs teach.
Leaves: workers and failures to `bench`, which says what went wrong.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mimo_launch.cli.shared.console import Console
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import seconds_text
from mimo_launch.search.correction import corrected, factors
from mimo_launch.search.layout_rows import LayoutRow, terms_of

_STEPS, _WARMUP = 10, 3


@frozen(kw_only=True)
class Runs:
    """Where specs of layouts run: the folder of their runs, the device, and its constants."""

    folder: Path
    device: str
    calibration: Path | None

    def calibrate(self, spec: Path, console: Console) -> Path:
        """Return the constants of this machine, measured at a spec. Raises: typer.Exit."""
        out = self.folder / "constants.json"
        console.note(f"measuring the constants of this machine at {spec}")
        if self._bench(spec, "--calibrate", str(out)) is None:
            help_ = f"mimo-launch bench {spec} --calibrate {out} --device {self.device}"
            console.refuse(f"{spec} could not be measured", help_=help_, code=1)
        return out

    def seconds(self, spec: Path, console: Console) -> float | None:
        """Return the median seconds of a step of a spec that runs here; None if it failed."""
        given = [] if self.calibration is None else ["--calibration", str(self.calibration)]
        output = self._bench(spec, "--json", *given)
        if output is None:
            console.note(f"warning: {spec} did not run; mimo-launch bench {spec} says why")
            return None
        found = float(json.loads(output)["step_s"]["median"])
        console.note(f"{spec}: {seconds_text(found)} a step")
        return found

    def _bench(self, spec: Path, *options: str) -> str | None:
        """Return what `bench` prints; None if it failed."""
        steps = ("--steps", str(_STEPS), "--warmup", str(_WARMUP))
        where = ("--device", self.device, "--runs", str(self.folder / "runs" / spec.stem))
        command = (sys.executable, "-m", "mimo_launch", "bench", str(spec), *steps, *where)
        done = subprocess.run((*command, *options), capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else None


def ranked_again(
    rows: Sequence[LayoutRow], files: Sequence[Path], number: int, runs: Runs, console: Console
) -> list[LayoutRow]:
    """Return the rows in the order of measured or corrected seconds; the first `number` run.

    Raises: typer.Exit if none of these runs.
    """
    measured = [runs.seconds(file, console) for file in files[:number]]
    known = [(row, each) for row, each in zip(rows, measured, strict=False) if each is not None]
    if not known:
        help_ = f"mimo-launch bench {files[0]} says why; without --bench, tune ranks by estimates"
        console.refuse("no layout ran", help_=help_, code=1)
    by = factors([terms_of(row.time) for row, _ in known], [each for _, each in known])
    seconds = {row.number: each for row, each in known}
    made = [
        replace(
            row,
            measured_seconds=seconds.get(row.number),
            corrected_seconds=corrected(terms_of(row.time), by),
        )
        for row in rows
    ]
    return sorted(made, key=lambda row: row.measured_seconds or row.corrected_seconds or 0.0)
