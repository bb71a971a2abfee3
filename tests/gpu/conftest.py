"""Ranks with a GPU each, as many as this machine has; they stay for all tests of a run.

GPU_TESTS_DEVICE=cpu runs the same bodies on gloo, on GPU_TESTS_RANKS processors (4): for work on
the tests where there is no GPU.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from mimo_launch.launcher.gpus import num_gpus
from mimo_launch.launcher.preload import import_for_workers
from mimo_launch.launcher.ranks import Ranks

DEVICE: Any = os.environ.get("GPU_TESTS_DEVICE", "cuda")
NUM_DEVICES = num_gpus() if DEVICE == "cuda" else int(os.environ.get("GPU_TESTS_RANKS", "4"))
# The largest worlds that tests use; smaller ones are powers of two below.
SIZES = [size for size in (1, 2, 4) if size <= NUM_DEVICES]
# A new spec makes new communicators; the first one also loads kernels.
TIMEOUT_SECONDS = 90

RAN: Counter[int] = Counter()
SECONDS: Counter[int] = Counter()


@pytest.fixture(scope="session")
def device() -> str:
    """`cuda`, or what the environment says instead."""
    if not NUM_DEVICES:
        pytest.skip("there is no GPU")
    return DEVICE


@pytest.fixture(scope="session")
def ranks_of(device: str) -> Iterator[Callable[[int], Ranks]]:
    """Ranks by world size, started when they are first asked for."""
    import_for_workers()
    with ExitStack() as stack:
        made: dict[int, Ranks] = {}

        def get(world_size: int) -> Ranks:
            if world_size > NUM_DEVICES:
                pytest.skip(f"needs {world_size} GPUs")
            if world_size not in made:
                made[world_size] = stack.enter_context(Ranks(world_size, device=device))
            return made[world_size]

        yield get


@pytest.fixture
def run_on(
    ranks_of: Callable[[int], Ranks],
) -> Callable[..., list[Any]]:
    """Call a function on ranks of a world of the given size; counted for the summary."""

    def run(world_size: int, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        begin = time.perf_counter()
        try:
            return ranks_of(world_size).run(
                function, *args, **{"timeout_s": TIMEOUT_SECONDS, **options}
            )
        finally:
            note_run(world_size, time.perf_counter() - begin)

    return run


def note_run(world_size: int, seconds: float) -> None:
    """Count what ran on how many ranks."""
    RAN[world_size] += 1
    SECONDS[world_size] += seconds


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a line whatever is captured."""

    def print_line(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}", end="", flush=True)

    return print_line


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how much ran on how many GPUs."""
    what = "GPUs" if DEVICE == "cuda" else "processors (GPU_TESTS_DEVICE)"
    terminalreporter.write_line(f"{NUM_DEVICES} {what} found")
    for size, count in sorted(RAN.items()):
        terminalreporter.write_line(f"  {count} runs on {size}: {SECONDS[size]:.0f} s")
