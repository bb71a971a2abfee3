"""The imbalance that ranks find together, each from the load of its own replica."""

import pytest
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.step_views import Imbalance, StepViews
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession


def read(made: Spec) -> list[tuple[dict[str, Imbalance], dict[str, Imbalance]]]:
    """Return what the ranks find in each of three steps, and what the whole step says."""
    dataset = build_dataset(made)
    order, found = global_order(made, dataset), []
    with (
        RankSession(Plan.of(made)) as session,
        StepReader(session, dataset, RunState(), lambda _: None) as reader,
    ):
        layout = session.layout
        for step in range(3):
            inputs = reader.read("train", order.take(step * made.batch.global_), step)
            views = StepViews(layout, inputs.data)
            whole = {module.name: views.imbalance(module) for module in layout.moving}
            found.append((inputs.imbalance, whole))
        assert not reader.read("heldout", tuple(range(made.batch.global_)), 0).imbalance
    return found


@pytest.mark.parametrize(
    "modules",
    [
        pytest.param({"vision": box(0, dp=3), "language": box(3, dp=2)}, id="dp 3 into dp 2"),
        pytest.param({"vision": box(0, dp=4), "language": box(0, dp=2, tp=2)}, id="same ranks"),
        pytest.param(
            {"vision": box(0, dp=2, balance="none"), "language": box(0, dp=2)}, id="not balanced"
        ),
    ],
)
def test_ranks_report_the_imbalance_of_the_whole_step(modules: dict[str, object]) -> None:
    """Parallelism: vision dp 2 to 4, apart from language and on its ranks."""
    made = spec(modules, microbatches=2, mbs=6, data={"kind": "synthetic"}, seq=64)
    ranks = run_ranks(read, made, world_size=world_size(made))
    assert all(steps == ranks[0] for steps in ranks)
    assert all(told == whole for told, whole in ranks[0])
    assert any(told["vision"].before > 1 for told, _ in ranks[0])
