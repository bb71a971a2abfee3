"""Ranks that serve all tests of a file, so that not each test forks and warms up its own."""

from collections.abc import Callable
from typing import Any

from mimo_launch.launcher.run_on_ranks import Ranks

_RUNNING: dict[int, Ranks] = {}


def running_ranks(world_size: int) -> Ranks:
    """Return ranks that may have served other tests, on which nothing was planted.

    Their first job takes twice as long as later ones. What a test patches in its own process
    does not reach them, or stays with them if they start meanwhile: it takes ranks of its own.
    """
    if world_size not in _RUNNING:
        _RUNNING[world_size] = Ranks(world_size)
    return _RUNNING[world_size]


def run_on_running_ranks(
    function: Callable[..., Any], *args: Any, world_size: int, timeout_s: float = 60
) -> list[Any]:
    """Call `function(*args)` on them, as `run_ranks` does on new ones; all of it must pickle."""
    return running_ranks(world_size).run(function, *args, timeout_s=timeout_s)


def end_running_ranks() -> None:
    """End all of them, as after each file."""
    while _RUNNING:
        _RUNNING.popitem()[1].close()
