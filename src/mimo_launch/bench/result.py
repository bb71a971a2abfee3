"""How to bench and what a bench has found, as plain values.

Decides: the fields of `bench.json` and of `bench --json` (docs/bench.md), and their version.
Relies on: nothing; no torch.
Leaves: finding the values to `measure` and `calibrate`, showing them to `cli`.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mimo_launch.bench.time_shares import Shares
from mimo_launch.estimate.calibration import Calibration

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Steps before, steps timed, the constants of the device, the command to note."""

    warmup: int
    steps: int
    calibration: Calibration
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, ends and quartiles of some times, in seconds."""

    median: float
    minimum: float
    q1: float
    q3: float
    maximum: float


def spread(seconds: Sequence[float]) -> Spread:
    """Return the spread of one or more times."""
    only = seconds[0]
    q1, median, q3 = (
        statistics.quantiles(seconds, n=4, method="inclusive")
        if len(seconds) > 1
        else (only, only, only)
    )
    return Spread(median=median, minimum=min(seconds), q1=q1, q3=q3, maximum=max(seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where it ran and with what; a package that is not there has no version."""

    device: str
    device_kind: str
    hosts: int
    versions: dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Of the median step. `tokens` are all positions of all sequences, `tflop` those of the model.

    `mfu` is None where the peak of the device is not known.
    """

    tokens: int
    tokens_per_s: float
    tokens_per_s_per_rank: float
    tflop: dict[str, float]
    tflops_per_rank: float
    peak_tflops: float | None
    mfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Most bytes of one rank at a time, and what the plan says: in tensors, and in all.

    Measured are what a GPU's allocator gave out and held, all that is used of the GPU, and the
    resident set of the process.
    """

    allocated: int | None
    reserved: int | None
    used: int | None
    resident: int
    estimated_allocated: int | None
    estimated_total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """One rank: where its time went, and its memory. A rank without work has no bubble.

    `estimated_bubble` is what the plan says, if it knows the device.
    """

    rank: int
    modules: tuple[str, ...]
    shares: Shares
    bubble: float | None
    estimated_bubble: float | None
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Everything. `skipped` steps had numbers that are not finite, and so no update.

    `estimated_step_s` is what the plan says, if it knows the device.
    """

    version: int = VERSION
    command: str
    date: str
    name: str
    plan_hash: str
    machine: Machine
    precision: str
    warmup: int
    steps: int
    skipped: int
    step_s: Spread
    step_times_s: tuple[float, ...]
    estimated_step_s: float | None
    speed: Speed
    ranks: tuple[RankResult, ...]

    def record(self) -> dict[str, Any]:
        """Return it as one JSON-able object."""
        return asdict(self)
