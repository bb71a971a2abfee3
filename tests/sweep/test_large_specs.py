"""Thousands of random specs above 32 ranks: none is proved as another one (nox -s sweep)."""

import os
from collections import Counter

import pytest
from hypothesis import given
from tests.support.graphs import graph_specs
from tests.support.reduced import silent_losses
from tests.support.specs import brief, layout_specs
from tests.support.sweeps import of_this_run

from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.coverage import not_proved
from mimo_launch.verify.shrink import shrink

NUM_SPECS = int(os.environ.get("SWEEP_LARGE_SPECS", "5000"))
SEEN: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def table_of_losses():
    """Print on how many ranks specs would be proved, and what they lose with saying so."""
    yield
    print(f"\n{SEEN['specs']} specs above 32 ranks:")
    for what, count in sorted(SEEN.items()):
        print(f"  {what:32} {count:5}")


def look_at(made: Spec) -> None:
    """Count what a spec loses with saying so; it loses nothing else."""
    small = shrink(made)
    ranks = next(most for most in (8, 16, 24, 32, 48, 64) if world_size(small) <= most)
    said = {
        each.key.partition(" of")[0] for each in not_proved(made, small) if "layout" in each.section
    }
    SEEN.update(["specs", f"at most {ranks:2} ranks", *(f"says of {each}" for each in said)])
    assert not silent_losses(made, small), brief(made)


@pytest.mark.sweep
@of_this_run(NUM_SPECS)
@given(made=layout_specs(64, supported_only=False).filter(lambda made: world_size(made) > 32))
def test_no_large_spec_loses_a_relation_or_its_kind_of_schedule(made: Spec) -> None:
    look_at(made)


@pytest.mark.sweep
@of_this_run(NUM_SPECS // 5)
@given(made=graph_specs(64).filter(lambda made: world_size(made) > 32))
def test_no_large_graph_loses_a_relation_or_its_kind_of_schedule(made: Spec) -> None:
    look_at(made)
