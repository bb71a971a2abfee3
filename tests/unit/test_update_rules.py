"""The one-rank run and the optimizers agree on which weights decay, and which Muon turns."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support.graphs import graph_specs
from tests.support.specs import ENCODER_MODELS, OF_PHI4, SPARSE, box, layout_specs, spec

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import declared_parameters
from mimo_launch.models.build import build_network
from mimo_launch.models.custom_stages import whole_stage
from mimo_launch.spec.optimizers import ModuleOptimizer, OptimizerSpec
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.oracle_run import decay_of, rule_of

# For each weight: whether it decays, and whether Muon updates it.
Rules = dict[str, tuple[bool, bool]]


def rules(made: Spec, name: str) -> tuple[Rules, Rules]:
    """Return the rules of a module's weights: those of its optimizers, and of the one-rank run."""
    with torch.device("meta"):
        network = build_network(made, whole_stage(made, name), ParallelContext())
    found, right = Rules(), Rules()
    for declared in declared_parameters(name, network):
        decays = declared.decays(embeddings=made.optimizer.decay.embeddings)
        for placed in declared.placed if declared.trains else ():
            weight = torch.empty(placed.segment.weight.shape, device="meta")
            oracle: Any = SimpleNamespace(spec=made, weights={placed.name: weight})
            found[placed.name] = decays, declared.is_matrix
            right[placed.name] = (
                decay_of(oracle, placed.name) > 0,
                rule_of(oracle, placed.name) == "muon",
            )
    return found, right


def compare(made: Spec, *, embeddings: bool) -> set[str]:
    """Compare the rules of all weights; return the kinds of models."""
    optimizer = {"kind": "muon", "weight_decay": 0.1, "decay": {"embeddings": embeddings}}
    plain = {name: each.replace(optimizer=ModuleOptimizer()) for name, each in made.modules.items()}
    made = made.replace(optimizer=OptimizerSpec.model_validate(optimizer), modules=plain)
    for name in made.modules:
        found, right = rules(made, name)
        assert found == right
    return {each.model.kind for each in made.modules.values()}


@pytest.mark.parametrize("embeddings", [False, True])
def test_one_rank_and_all_ranks_update_every_weight_by_the_same_rule(embeddings: bool) -> None:
    seen = set[str]()

    @settings(max_examples=30, phases=[Phase.generate], database=None)
    @given(st.one_of(layout_specs(), layout_specs(languages=SPARSE), graph_specs()))
    def each(made: Spec) -> None:
        seen.update(compare(made, embeddings=embeddings))

    each()
    models = [OF_PHI4, *({"kind": kind} for kind in ENCODER_MODELS.keys() - seen)]
    for model in models:
        seen.update(compare(spec({"one": box(model=model)}), embeddings=embeddings))
    assert seen >= {*ENCODER_MODELS, "decoder", "hybrid"}
