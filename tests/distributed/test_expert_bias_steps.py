"""What moves the biases of experts in a session: steps that are not skipped, nothing else."""

import torch
from tests.support.planted_experts import BIASED, routed

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, steps_of
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layers.router import ExpertBias
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.generate import generate_forward
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession

RATE = BIASED["bias_update_rate"]


def history(spec: Spec) -> dict[str, list[float]]:
    """Return load, or bias, after each of some things that a run does."""
    dataset = build_dataset(spec)
    ids = next(iter(steps_of(global_order(spec, dataset), 1)))
    inputs = step_inputs(dataset, "train", ids, 0)
    found = {}
    with RankSession(Plan.of(spec)) as session:
        [bias] = [
            x for x in session.modules["language"].stages[0].modules() if isinstance(x, ExpertBias)
        ]
        session.gradients(inputs)
        found["load"] = bias.load.tolist()
        session.updates.apply(0, skip=torch.ones(()))
        found["skipped"] = bias.values.tolist()
        session.update()
        found["step"] = bias.values.tolist()
        session.executor.run_forward(generate_forward(session.layout)[session.rank], inputs)
        found["load after an evaluation"] = bias.load.tolist()
        session.gradients(inputs)
        found["load of the next step"] = bias.load.tolist()
    return found


def test_only_a_step_that_counts_moves_biases() -> None:
    """Parallelism: dp 2; each token of the step chooses two experts."""
    spec = routed({"ep": 2}, BIASED, dp=2)
    first, second = run_ranks(history, spec, world_size=2)
    assert first["skipped"] == [0.0] * 4
    assert first["step"] == second["step"]
    loads = [sum(both) for both in zip(first["load"], second["load"], strict=True)]
    mean = sum(loads) / 4
    assert first["step"] == [RATE * ((load < mean) - (load > mean)) for load in loads]
    assert any(first["step"])
    for each in (first, second):
        assert each["load after an evaluation"] == each["load"]
        # Weights have moved, tokens are as many.
        assert sum(each["load of the next step"]) == sum(each["load"])
