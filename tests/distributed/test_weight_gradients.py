"""In bf16 the weight gradients of a step are sums in fp32, whoever adds them."""

import pytest
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.launcher.ranks import run_ranks
from mimo_launch.modules import build
from mimo_launch.parallel.local import local_tensor
from mimo_launch.parallel.segments import SegmentedModule
from mimo_launch.spec.model import Spec
from mimo_launch.train.data.dataset import build_dataset
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.session import RankSession

NUM_MICROBATCHES = 8


def made(precision: str, microbatches: int = NUM_MICROBATCHES) -> Spec:
    return spec(
        {
            "vision": box(0, dp=2),
            "language": box(0, dp=2, model={"layers": 2, "hidden": 64, "heads": 4}),
        },
        microbatches=microbatches,
        mbs=2,
        encoder_microbatches=1,
        train={"precision": precision},
    )


def gradients_of(spec: Spec, in_products: bool) -> tuple[int, dict[str, Tensor]]:
    """Return how many layers add gradients by themselves, and those of this rank's shards."""
    if not in_products:
        build.accumulate_in_products = lambda unit: None
    inputs = step_inputs(build_dataset(spec), "train", tuple(range(spec.batch.global_)), 0)
    with RankSession(spec) as session:
        layers = [
            layer
            for module in session.modules.values()
            for stage in module.stages.values()
            for layer in stage.modules()
            if isinstance(layer, SegmentedModule)
        ]
        adding = sum(getattr(layer, "weight_gradients", None) is not None for layer in layers)
        session.gradients(inputs)
        return adding, {
            f"{name}.{number}": local_tensor(item.parameter.grad).double().clone()
            for name in session.modules
            for number, item in enumerate(session.declared(name))
        }


@pytest.mark.parametrize("microbatches", [1, NUM_MICROBATCHES])
def test_sums_in_products_are_no_worse_than_sums_by_fsdp(microbatches: int) -> None:
    exact, mine, theirs = (
        run_ranks(gradients_of, made(precision, microbatches), in_products, world_size=2)
        for precision, in_products in (("fp64", False), ("bf16", True), ("bf16", False))
    )
    for (none, want), (adding, got), (also_none, other) in zip(exact, mine, theirs, strict=True):
        assert none == also_none == 0
        assert adding > 0

        def error(found: dict[str, Tensor], want: dict[str, Tensor] = want) -> float:
            squares = sum(float((found[k] - want[k]).square().sum()) for k in want)
            return (squares / sum(float(w.square().sum()) for w in want.values())) ** 0.5

        assert 0 < error(got) <= 1.05 * error(other) < 0.05
