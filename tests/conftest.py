"""Set-up of every test run: one thread, no fixed width and a lazy collector of garbage."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A forked rank hangs in an OpenMP pool that its parent has used with several threads.
os.environ["OMP_NUM_THREADS"] = "1"

from tests.support.sweeps import leave_to_sweep
from tests.support.two_hosts import hosts  # noqa: F401 - a fixture of several folders

# pytest-xdist gives its workers a width, which would hide that of a terminal from what they start.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Started by nohup or a service, the tests would ignore it, and so would what they start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Thousands of tests and the modules of torch live as long as the process. The collector would walk
# through them again and again; in ranks, too, which are forked from it.
gc.set_threshold(20_000, 20, 20)

# How long it takes to draw an example says something of the machine, not of the code. What is drawn
# is the same in every run, so that a change is blamed only for what it breaks; `nox -s fuzz` and
# `sweep` look for more, and so does `nox -s tests -- --hypothesis-profile random`.
ALWAYS: dict[str, Any] = {"suppress_health_check": [HealthCheck.too_slow], "deadline": None}
settings.register_profile("random", **ALWAYS)
settings.register_profile("tests", **ALWAYS, derandomize=True)
settings.load_profile("tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave cases to the sweep before others are chosen by their marks."""
    leave_to_sweep(items, whole_files=not any("::" in each for each in config.args))


def pytest_collection_finish() -> None:
    """Spare the collector what is there before the first test and stays until after the last."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _ranks_end_with_the_file() -> Iterator[None]:
    """End the ranks that served the tests of a file."""
    yield
    if ranks := sys.modules.get("tests.support.running_ranks"):  # Else torch would be imported.
        ranks.end_running_ranks()
