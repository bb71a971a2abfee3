"""The options and the result of a bench, as plain values.

Decides: the fields of `bench.json` and of `bench --json` (docs/bench.md), and their version.
Relies on: nothing; no torch.
Leaves: finding the values to `measure_steps` and `calibrate`, showing them to `cli`.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mimo_launch.estimate.device_constants import Calibration

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Steps to warm up, steps to time, the constants of the device, the command to record.

    `with_loader`, each step reads its own samples as training does; otherwise the samples of a few
    steps are in memory. `twin_of` is the file of the spec that a text-only twin was made of.
    """

    warmup: int
    steps: int
    with_loader: bool = False
    twin_of: str | None = None
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
    """The hardware and software of a bench; the version of a missing package is None."""

    device: str
    device_kind: str
    hosts: int
    versions: dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of the median step. `tokens` counts all positions, `tflop` the work of each module.

    `language_tokens_per_s_per_rank` counts the share of the time that language has of the work.
    `mfu` is None if the peak of the device is not known.
    """

    tokens: int
    tokens_per_s: float
    tokens_per_s_per_rank: float
    language_tokens_per_s_per_rank: float
    tflop: dict[str, float]
    tflops_per_rank: float
    peak_tflops: float | None
    mfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of a rank's time; their sum is 1."""

    compute: float
    all_to_all: float
    bridge: float
    p2p: float
    gradient_sync: float
    optimizer: float
    idle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peak memory of one rank in bytes, measured and as the plan estimates it.

    Measured: the memory that the GPU's allocator gave out and that it held, all GPU memory in use,
    and the resident set of the process. Estimated: tensors, and all memory.
    """

    allocated: int | None
    reserved: int | None
    used: int | None
    resident: int
    estimated_allocated: int | None
    estimated_total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How long the timed steps waited for their samples on one rank, and how long it read them.

    `share` is the part of all steps in which they waited.
    """

    waited_s: Spread
    read_s: Spread
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """One rank: shares of its time, and its memory. A rank without work has no bubble.

    `estimated_bubble` is the plan's estimate, if it knows the device. There is no `loading` if the
    samples are in memory.
    """

    rank: int
    modules: tuple[str, ...]
    shares: Shares
    bubble: float | None
    estimated_bubble: float | None
    memory: Memory
    loading: Loading | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The whole result. `skipped` steps had non-finite numbers, and updated nothing.

    `estimated_step_s` is the plan's estimate, if it knows the device. `twin_of` is as in
    `BenchOptions`.
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
    with_loader: bool
    twin_of: str | None
    step_s: Spread
    step_times_s: tuple[float, ...]
    estimated_step_s: float | None
    speed: Speed
    ranks: tuple[RankResult, ...]

    def record(self) -> dict[str, Any]:
        """Return the result as one JSON-able object."""
        return asdict(self)
