"""Hundreds of random specs, each proved against the one-rank run (nox -s sweep)."""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.support.proof import failures, verdicts
from tests.support.specs import brief, features, layout_specs

from mimo_launch.spec.model import Spec

NUM_SPECS = int(os.environ.get("SWEEP_SPECS", "300"))
SEED = int(os.environ.get("SWEEP_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
SEEN: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def coverage_table():
    """Print the seed and what the specs of this run covered."""
    print(f"\nSWEEP_SEED={SEED} repeats this run")
    yield
    total = SEEN["specs"]
    print(f"\n{total} specs, share of them with each feature:")
    for feature, count in sorted(SEEN.items()):
        print(f"  {feature:32} {count:5} {count / max(1, total):6.1%}")


@pytest.mark.sweep
@seed(SEED)
@settings(
    max_examples=NUM_SPECS,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(spec=layout_specs(8, supported_only=False))
def test_random_layouts_compute_the_one_rank_gradients(spec: Spec) -> None:
    """Loss, norms, every gradient and the update of a random layout equal the oracle's.

    A rank that hangs for 60 s is a failure.
    """
    SEEN["specs"] += 1
    SEEN.update(features(spec))
    failed = failures(verdicts(spec))
    assert not failed, f"{brief(spec)}\n" + "\n".join(failed[:10])
