"""Hundreds of random specs, each proved against the one-rank run (nox -s sweep)."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.support.proof import failures, verdicts
from tests.support.specs import brief, features, layout_specs

from mimo_launch.spec.model import Spec

NUM_SPECS = 200
SEEN: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def coverage_table():
    """Print what the specs of this run covered."""
    yield
    total = SEEN["specs"]
    print(f"\n{total} specs, share of them with each feature:")
    for feature, count in sorted(SEEN.items()):
        print(f"  {feature:32} {count:5} {count / max(1, total):6.1%}")


@pytest.mark.sweep
@settings(
    max_examples=NUM_SPECS,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(spec=layout_specs(8, supported_only=True))
def test_random_layouts_compute_the_one_rank_gradients(spec: Spec) -> None:
    """Loss, norms, every gradient and the update of a random layout equal the oracle's."""
    SEEN["specs"] += 1
    SEEN.update(features(spec))
    failed = failures(verdicts(spec))
    assert not failed, f"{brief(spec)}\n" + "\n".join(failed[:10])
