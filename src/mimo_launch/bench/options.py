"""How to measure, as whoever starts a bench says it.

Decides: the version of `bench.json`.
Relies on: nothing; no torch.
Leaves: measuring to `measure` and `calibrate`.
"""

from dataclasses import dataclass

from mimo_launch.estimate.calibration import Calibration

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Steps before, steps timed, the constants of the device, the command to note."""

    warmup: int
    steps: int
    calibration: Calibration
    command: str
