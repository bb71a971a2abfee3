"""Thousands of random specs on up to 64 ranks: programs end, routes fit, classes prove it."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.support.class_proof import prove_as_all_ranks
from tests.support.features import features
from tests.support.graphs import graph_features, graph_specs
from tests.support.simulated import broken_rules
from tests.support.specs import DRAWS, brief, layout_specs
from tests.support.sweeps import SEED

from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec

NUM_SPECS = 2000
SEEN: dict[str, Counter[str]] = {}
LIMITED = settings(
    max_examples=NUM_SPECS,
    deadline=20_000,  # A spec that takes longer counts as a failure.
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module", autouse=True)
def coverage_table():
    """Print what the specs of this run covered."""
    before = DRAWS.copy()
    yield
    for models, seen in SEEN.items():
        print(f"\n{models}: {seen['specs']} specs simulated, share of them with each feature:")
        for feature, count in sorted(seen.items()):
            print(f"  {feature:32} {count:5} {count / max(1, seen['specs']):6.1%}")
    print("draws:", dict(DRAWS - before))


def look_at(models: str, made: Spec, covered: set[str]) -> None:
    """Count what a spec covers; check its rules, and both ways of proving that it ends."""
    SEEN.setdefault(models, Counter()).update(["specs", *covered])
    found = broken_rules(made)
    assert not found, f"{brief(made)}\n" + "\n".join(found[:10])
    prove_as_all_ranks(Plan.of(made), mistakes=2)


@pytest.mark.sweep
@seed(SEED)
@LIMITED
@given(made=layout_specs(64, supported_only=False))
def test_random_specs_on_many_ranks_end_and_follow_the_data(made: Spec) -> None:
    look_at("stars", made, features(made))


@pytest.mark.sweep
@seed(SEED)
@LIMITED
@given(made=graph_specs(64))
def test_random_graphs_on_many_ranks_end_and_follow_the_data(made: Spec) -> None:
    look_at("graphs", made, graph_features(made))
