"""Three fixed random layouts against the one-rank run; hundreds more in tests/sweep."""

from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.support.partly_trained import partly_trained
from tests.support.proof import failures, verdicts
from tests.support.specs import brief, layout_specs

from mimo_launch.spec.spec import Spec


@seed(20260101)
@settings(
    max_examples=3,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(spec=layout_specs(8, supported_only=False).flatmap(partly_trained))
def test_random_layouts_compute_the_one_rank_gradients(spec: Spec) -> None:
    """Loss, norms, every gradient and the update equal the oracle's."""
    failed = failures(verdicts(spec, steps=2))
    assert not failed, f"{brief(spec)}\n" + "\n".join(failed[:10])
