"""Products that a tp rank computes in a forward of a real step, beside those that are timed."""

import pytest
from tests.distributed.test_kept_by_steps import (
    AUDIO,
    BLOCKS,
    GEMMA4,
    HYBRID,
    LATENT,
    LLAMA4,
    OVIS2,
    SP,
    VECTORS,
    language,
    step,
    vision,
)
from tests.support.kept_steps import kernels_of_gpus
from tests.support.kernels import flat
from tests.support.running_ranks import run_on_running_ranks
from torch.utils.flop_counter import FlopCounterMode

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.kernel_table import KernelTable
from mimo_launch.estimate.kernel_times import StageKernels
from mimo_launch.estimate.workload import workload
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.step_state import StepState
from mimo_launch.schedule.actions import Action
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")

Operations = tuple[str, float, float]
STEPS = {
    f"{name}, {how}": step(models, each=each)
    for how, each in (("tp 2", {"tp": 2}), ("sequence parallelism", SP))
    for name, models in (
        ("mlp", vision(projector="mlp")),
        ("linear", vision(projector="linear")),
        ("gated", vision(projector="gated")),
        ("a map after the projector", vision(projector="merger", projector_out=96)),
        ("rows of three layers", vision(layers=4, deepstack=[0, 1])),
        ("a tower of Llama 4", vision(**LLAMA4)),
        ("a tower of Gemma 4", vision(**GEMMA4)),
        ("a tower of Ovis2", vision(**OVIS2)),
        ("a resampler", {"connector": {"kind": "connector", **BLOCKS, "queries": 16}}),
        ("a flow generator", {"flow": {"kind": "flow", **BLOCKS, "patch": 2}}),
        (
            "a talker",
            {"talker": {"kind": "talker", **BLOCKS, "kv_heads": 2, "codebooks": 2, "vocab": 64}},
        ),
        ("latent attention", language(**LATENT)),
        ("a hybrid", {"language": HYBRID}),
        ("audio", {"vision": {}, "audio": AUDIO}),
        ("per-layer embeddings", language(**VECTORS)),
    )
}


class Counting(KernelTable):
    """A table in which an operation of a product takes a second, and all else no time."""

    __slots__ = ()

    def seconds(self, kernel: str, amount: float, *sizes: float) -> float:
        del sizes
        return amount if kernel == "product" else 0.0


def operations_in_step(spec: Spec) -> list[Operations]:
    """Run the first step of a spec; return module, counted and timed operations of forwards."""
    found = list[Operations]()
    dataset = build_dataset(spec)
    inputs = step_inputs(dataset, "train", global_order(spec, dataset).take(0), 0)
    with kernels_of_gpus(), RankSession(Plan.of(spec), randomise=True) as session:
        run, layout = session.executor.stages.forward, session.layout

        def forward(action: Action, step: StepState) -> None:
            with FlopCounterMode(display=False) as counter:
                run(action, step)
            counts = counter.get_flop_counts()["Global"]
            module = layout[action.module]
            replica = module.grid.index(Axis.DP, session.rank)
            work = workload(step.views, module, replica, action.index)
            stage = module.stages[action.stage or 0]
            one = Counting(device="", source="", grids=flat().grids)
            kernels = StageKernels(spec, layout, module, stage, work, Calibration(kernels=one))
            timed = kernels.forward() * kernels.constants.sustained
            counted = sum(
                n for op, n in counts.items() if str(op).split(".")[-1] in ("mm", "addmm")
            )
            found.append((action.module, counted, timed))

        session.executor.stages.forward = forward  # type: ignore[method-assign]
        session.gradients(inputs).read()
    return found


@pytest.mark.parametrize("name", STEPS)
def test_products_are_timed_as_often_as_a_rank_computes_them(name: str) -> None:
    ranks = run_on_running_ranks(operations_in_step, STEPS[name], world_size=2, timeout_s=120)
    for each in zip(*ranks, strict=True):
        module, counted, timed = max(each, key=lambda one: one[1])
        # Under sequence parallelism ranks have equal shares of padded lists.
        assert timed == pytest.approx(counted, rel=0.01), module
