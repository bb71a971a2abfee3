"""Two thousand random specs on up to 64 ranks: programs end, routes fit, classes prove it."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.support.class_proof import prove_as_all_ranks
from tests.support.features import features
from tests.support.simulated import broken_rules
from tests.support.specs import DRAWS, brief, layout_specs

from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec

NUM_SPECS = 2000
SEEN: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def coverage_table():
    """Print what the specs of this run covered."""
    before = DRAWS.copy()
    yield
    total = SEEN["specs"]
    print(f"\n{total} specs simulated, share of them with each feature:")
    for feature, count in sorted(SEEN.items()):
        print(f"  {feature:32} {count:5} {count / max(1, total):6.1%}")
    print("draws:", dict(DRAWS - before))


@pytest.mark.sweep
@settings(
    max_examples=NUM_SPECS,
    deadline=20_000,  # A spec that takes longer counts as a failure.
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(made=layout_specs(64, supported_only=False))
def test_random_specs_on_many_ranks_end_and_follow_the_data(made: Spec) -> None:
    SEEN["specs"] += 1
    SEEN.update(features(made))
    found = broken_rules(made)
    assert not found, f"{brief(made)}\n" + "\n".join(found[:10])
    prove_as_all_ranks(Plan.of(made), mistakes=2)
