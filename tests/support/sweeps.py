"""What is left to `nox -s sweep`; how many random specs it draws, and from which seed.

Of a test with many cases the default suite runs those that together have each value of each factor
that the test claims: each kind, each placement, each axis above 1, each bug; and fast ones that
alone join two of them. `tests/seldom.txt` lists the others, below the name of their test; a test
without cases is left out whole.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings

SELDOM = Path(__file__).parents[1] / "seldom.txt"
SEED = int(os.environ.get("SWEEP_SEED", "0")) or int.from_bytes(os.urandom(4), "big")


def of_this_run(num_specs: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a test draw so many specs from the seed of this run, and stop at the first failure."""
    chosen = settings(
        max_examples=num_specs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(SEED)(chosen(test))


def cases(found: Iterable[str], often: Collection[str]) -> list[Any]:
    """Return parameters, of which those that are not `often` run with `nox -s sweep` alone."""
    return [pytest.param(each, marks=() if each in often else pytest.mark.sweep) for each in found]


def seldom() -> dict[str, set[str]]:
    """Return the cases of `tests/seldom.txt` by the name of their test."""
    found, test = dict[str, set[str]](), ""
    for line in SELDOM.read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            found[test].add(line.strip())
        else:
            found[test := line] = set()
    return found


def leave_to_sweep(items: list[pytest.Item], *, whole_files: bool) -> None:
    """Mark the collected cases that are listed.

    Raises: pytest.UsageError if a listed case of a whole file is not there, or none stays.
    """
    by_test: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        test, _, case = item.nodeid.partition("[")
        by_test[test][case.removesuffix("]")] = item
    for test, left in seldom().items():
        found = by_test.get(test, {})
        if found and whole_files and (left - found.keys() or (left and left == found.keys())):
            raise pytest.UsageError(f"{SELDOM}: {test} has {sorted(found)}, not {sorted(left)}")
        for case in left & found.keys() if left else found:
            found[case].add_marker(pytest.mark.sweep)
