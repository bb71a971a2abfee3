"""Hundreds of random specs, each proved against the one-rank run (nox -s sweep)."""

import os
import time
from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given
from tests.support.features import features
from tests.support.graphs import graph_features, graph_specs
from tests.support.partly_trained import partly_trained
from tests.support.planted_training import with_settings
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.specs import SPARSE, brief, layout_specs
from tests.support.sweeps import of_this_run

from mimo_launch.launcher.run_on_ranks import RankError
from mimo_launch.spec.spec import Spec

NUM_SPECS = int(os.environ.get("SWEEP_SPECS", "300"))
NUM_SPARSE = int(os.environ.get("SWEEP_SPARSE_SPECS", "100"))
NUM_GRAPHS = int(os.environ.get("SWEEP_GRAPHS", "200"))
# A proof of training takes some four times as long as one of gradients.
TRAINED_EACH = 4
# At ten times this rate, nine narrow layers that norm only what they add multiply rounding errors
# by a million in five steps.
RATE = 1e-3
SEEN: dict[str, Counter[str]] = {}


@pytest.fixture(scope="module", autouse=True)
def coverage_table():
    """Print what the specs of each test covered."""
    yield
    for models, seen in SEEN.items():
        total = seen["specs"]
        print(f"\n{models}: {total} specs, share of them with each feature:")
        for feature, count in sorted(seen.items()):
            print(f"  {feature:32} {count:5} {count / max(1, total):6.1%}")


def _at_small_rate(made: Spec) -> Spec:
    optimizer = made.optimizer
    rates = optimizer.schedule.replace(min_lr=RATE / 10)
    return made.replace(optimizer=optimizer.replace(lr=RATE, schedule=rates))


def prove(models: str, spec: Spec, covered: set[str]) -> None:
    """Count what a spec covers, and compare it with the one-rank run; of some, training, too."""
    seen = SEEN.setdefault(models, Counter())
    seen.update(["specs", *covered])
    begin = time.perf_counter()
    trains = any(module.frozen is not True for module in spec.modules.values())
    try:
        failed = failures(verdicts(spec, steps=2))
        if crc32(repr(spec).encode()) % TRAINED_EACH == 0 and trains:
            seen["trained"] += 1
            failed += failures(training_verdicts(_at_small_rate(with_settings(spec))))
    except RankError as error:
        failed = [str(error)]
    told = f"{brief(spec)}\n" + "\n".join(failed[:10])
    seconds = time.perf_counter() - begin
    print(f"  {models} {seen['specs']}: {'FAILS ' + told if failed else 'equal'}, {seconds:.1f} s")
    assert not failed, told


@pytest.mark.sweep
@of_this_run(NUM_SPECS)
@given(spec=layout_specs(8, supported_only=False).flatmap(partly_trained))
def test_random_layouts_compute_the_one_rank_gradients(spec: Spec) -> None:
    """Loss, norms, every gradient and the update of a random layout equal the oracle's.

    A rank that hangs for 60 s is a failure.
    """
    prove("any model", spec, features(spec))


@pytest.mark.sweep
@of_this_run(NUM_SPARSE)
@given(spec=layout_specs(8, supported_only=False, languages=SPARSE).flatmap(partly_trained))
def test_random_hybrid_and_expert_models_compute_the_one_rank_gradients(spec: Spec) -> None:
    """The same of language models that are hybrid, have experts, or both."""
    prove("hybrid and experts", spec, features(spec))


@pytest.mark.sweep
@of_this_run(NUM_GRAPHS)
@given(spec=graph_specs().flatmap(partly_trained))
def test_random_graphs_compute_the_one_rank_gradients(spec: Spec) -> None:
    """The same of connectors, several readers and generators."""
    prove("graphs", spec, graph_features(spec))
