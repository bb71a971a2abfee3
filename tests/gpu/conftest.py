"""Ranks with a GPU each, as many as this machine has; they stay for all tests of a run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.gpu_ranks import (
    DEVICE,
    NUM_DEVICES,
    TIMEOUT_SECONDS,
    count_jobs,
    count_test,
    summary,
)

from mimo_launch.launcher.forking import import_for_workers
from mimo_launch.launcher.run_on_ranks import Ranks

count_jobs()


@pytest.fixture(scope="session")
def device() -> str:
    """`cuda`, or what the environment says instead."""
    if not NUM_DEVICES:
        pytest.skip("there is no GPU")
    return DEVICE


@pytest.fixture(scope="session")
def ranks_of(device: Any) -> Iterator[Callable[[int], Ranks]]:
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


@pytest.fixture(scope="session")
def one_rank() -> Iterator[Ranks]:
    """One rank on the processor, for the oracle."""
    import_for_workers()
    with Ranks(1) as ranks:
        yield ranks


@pytest.fixture
def run_on(ranks_of: Callable[[int], Ranks]) -> Callable[..., list[Any]]:
    """Call a function on the ranks of a world of some size, and return the results by rank."""

    def run(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        return ranks_of(world_size).run(function, *args, timeout_s=TIMEOUT_SECONDS)

    return run


@pytest.fixture(autouse=True)
def cuda_on_ranks_alone() -> Iterator[None]:
    """Fail a test that uses CUDA in this process: from then on, no ranks could be forked."""
    yield
    assert not torch.cuda.is_initialized(), "use CUDA in a function that `run_on` calls"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a line whatever is captured."""

    def print_line(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}", end="", flush=True)

    return print_line


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Show warnings, which are errors elsewhere: those of drivers and kernels are not ours."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count outcomes by the number of GPUs."""
    if report.when == "call":
        count_test(report.outcome)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how much ran on how many GPUs."""
    for line in summary():
        terminalreporter.write_line(line)
