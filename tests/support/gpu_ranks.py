"""The ranks that tests in tests/gpu have, and a count of what ran on them.

GPU_TESTS_DEVICE=cpu runs the same bodies on gloo, on GPU_TESTS_RANKS processors (4): for work on
the tests where there is no GPU.
"""

import os
import time
import warnings
from collections import Counter, defaultdict
from typing import Any

import pytest

from mimo_launch.diag.installed import ENGINE, is_installed
from mimo_launch.launcher.gpus import num_gpus
from mimo_launch.launcher.run_on_ranks import Ranks

DEVICE: Any = os.environ.get("GPU_TESTS_DEVICE", "cuda")
with warnings.catch_warnings():
    # Python 3.12 warns of a fork beside other threads; this one only counts.
    warnings.simplefilter("ignore")
    NUM_DEVICES = num_gpus() if DEVICE == "cuda" else int(os.environ.get("GPU_TESTS_RANKS", "4"))
# World sizes of tests that may choose.
SIZES = [size for size in (1, 2, 4) if size <= NUM_DEVICES]
# A new spec makes new communicators; the first one also loads kernels.
TIMEOUT_SECONDS = 240

# World sizes of the test that runs; outcomes of tests by the largest of theirs; jobs and seconds.
USED: set[int] = set()
OUTCOMES: defaultdict[int, Counter[str]] = defaultdict(Counter)
JOBS: Counter[int] = Counter()
SECONDS: Counter[int] = Counter()


def engine_ranks(gpus: int) -> Ranks:
    """Return new ranks with a GPU each, which take seconds to start; skip without the package."""
    if not is_installed(ENGINE):
        pytest.skip(f"{ENGINE} is not installed")
    if num_gpus() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    return Ranks(gpus, device="cuda")


def count_jobs() -> None:
    """Count every job on ranks from now on."""
    run = Ranks.run

    def counted(self: Ranks, *args: Any, **options: Any) -> list[Any]:
        if self.device != DEVICE:  # The oracle.
            return run(self, *args, **options)
        begin = time.perf_counter()
        USED.add(self.world_size)
        try:
            return run(self, *args, **options)
        finally:
            JOBS[self.world_size] += 1
            SECONDS[self.world_size] += time.perf_counter() - begin

    Ranks.run = counted


def count_test(outcome: str) -> None:
    """Count the test that has just run."""
    if USED:
        OUTCOMES[max(USED)][outcome] += 1
        USED.clear()


def summary() -> list[str]:
    """Say how much ran on how many, in lines."""
    what = "GPUs" if DEVICE == "cuda" else "processors instead of GPUs"
    lines = [f"{NUM_DEVICES} {what} found"]
    for size, outcomes in sorted(OUTCOMES.items()):
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        lines.append(f"  tests on {size}: {counts} ({JOBS[size]} jobs, {SECONDS[size]:.0f} s)")
    return lines
