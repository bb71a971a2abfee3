"""How many random specs a sweep draws, and from which seed."""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings

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
