"""What is drawn for `nox -s sweep` is accepted, and covers what a proof is to cover."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from tests.support.features import features
from tests.support.graphs import graph_specs
from tests.support.partly_trained import partly_trained
from tests.support.specs import KINDS, SPARSE, layout_specs

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.module import MODELS
from mimo_launch.spec.spec import Spec

NAMED = {
    *KINDS, "language tp > 1", "language cp > 1", "language pp > 1", "language dp > 1",
    "ep > 1", "split experts", "replicas of experts", "shared expert", "stages without experts",
    "experts, softmax", "experts, sigmoid", "biases of experts", "every expert chosen",
    "experts, frozen", "experts, full sharding", "experts, recompute",
    "hybrid, Mamba layers", "hybrid, attention layers", "hybrid, MLP layers", "hybrid, experts",
    "hybrid, short convolutions",
    "Mamba over tp", "Mamba over cp", "Mamba groups shared over tp",
    "colocated", "disjoint", "overlap", "sequence parallel", "packed documents", "packed records",
    "text only", "mixed text", "adapter of language", "adapter of another module",
    "adapter with dropout", "frozen layers of language", "frozen layers of another module",
    "shards over a part of dp", "base in few bits",
}  # fmt: skip


EXAMPLES = [60, pytest.param(300, marks=pytest.mark.sweep)]


def fixed(examples: int, specs: SearchStrategy[Spec]) -> list[Spec]:
    """Return fixed draws, each of which `validate` accepts."""
    found: list[Spec] = []

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(made=specs.flatmap(partly_trained))
    def each(made: Spec) -> None:
        assert not [item for item in check(made) if item.is_error]
        found.append(made)

    each()
    return found


@pytest.mark.parametrize("examples", EXAMPLES)
def test_random_hybrid_and_expert_models_are_valid_and_of_every_sort(examples: int) -> None:
    """Nothing is rejected, and three hundred have all that is named."""
    found = [
        features(made)
        for made in fixed(examples, layout_specs(8, supported_only=False, languages=SPARSE))
    ]
    assert all(each & {"hybrid", "experts"} for each in found)
    seen = set[str]().union(*found)
    assert examples < 300 or seen >= NAMED, NAMED - seen


@pytest.mark.parametrize("examples", EXAMPLES)
def test_random_graphs_are_valid_and_of_every_kind(examples: int) -> None:
    """Nothing is rejected, and three hundred have every built-in kind of model."""
    specs = fixed(examples, graph_specs())
    seen = {module.model.kind for made in specs for module in made.modules.values()}
    assert examples < 300 or seen == MODELS.keys(), MODELS.keys() - seen
