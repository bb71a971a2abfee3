"""The grouped product of experts and the travel of their tokens on GPUs, in bf16."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.support.specs import box, hybrid, spec

from mimo_launch.comm.world import device_for
from mimo_launch.data.build import build_dataset
from mimo_launch.layers.experts import ExpertRuns, _is_grouped, grouped_linear
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession

pytestmark = pytest.mark.gpu

EVEN = (512,) * 8
UNEVEN = (0, 1700, 3, 0, 0, 1, 392, 0)
WIDTH, INNER = 2688, 1856
# What rounding to bf16 leaves of outputs and gradients, by norm.
BOUND = 6e-3


def products(counts: tuple[int, ...], kind: Any) -> tuple[bool, list[float]]:
    """Return whether one kernel multiplies for all experts, and how far off it is from float64."""
    device = device_for(kind, dist.get_rank())
    torch.manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(torch.bfloat16)

    leaves = [drawn(sum(counts), WIDTH), drawn(len(counts), INNER, WIDTH)]
    above = drawn(sum(counts), INNER)
    results = []
    for dtype in (torch.bfloat16, torch.float64):
        x, w = (t.to(dtype).requires_grad_() for t in leaves)
        if dtype == torch.bfloat16:
            out = grouped_linear(x, w, ExpertRuns.of(counts, device))
        else:
            parts = zip(torch.split(x, list(counts)), w.unbind(), strict=True)
            out = torch.cat([F.linear(a, b) for a, b in parts])
        results.append([out, *torch.autograd.grad(out, (x, w), above.to(dtype))])
    without = [index for index, count in enumerate(counts) if not count]
    assert results[0][2][without].count_nonzero() == 0
    return _is_grouped(*leaves), [
        float((mine.double() - theirs).norm() / theirs.norm())
        for mine, theirs in zip(*results, strict=True)
    ]


@pytest.mark.parametrize("counts", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_one_product_for_all_experts_is_one_for_each(
    counts: tuple[int, ...], run_on: Callable[..., list[Any]], device: str
) -> None:
    """At the sizes of Nemotron 3 Nano; experts without tokens have gradients that are zero."""
    [(grouped, errors)] = run_on(1, products, counts, device)
    assert grouped == (device == "cuda")
    assert max(errors) <= BOUND, errors


def gradients(made: Spec, kind: Any) -> dict[str, torch.Tensor]:
    """Return the gradients of this rank's shards, on the host."""
    inputs = step_inputs(build_dataset(made), "train", tuple(range(made.batch.global_)), 0)
    with RankSession(Plan.of(made), device=device_for(kind, dist.get_rank())) as session:
        session.gradients(inputs)
        return {
            placed.name: local_tensor(item.parameter.grad).double().cpu()
            for item in session.declared("language")
            for placed in item.placed[:1]
            if item.parameter.grad is not None
        }


def hybrid_experts(precision: str) -> Spec:
    """Return a model in which every token goes to all experts, so that rounding reroutes none."""
    model = hybrid({}, "ME*E", groups=2) | {"hidden": 64, "heads": 4, "head_dim": 16}
    model["mamba"] = {"heads": 8, "head_dim": 16, "state": 16, "groups": 2, "chunk": 16}
    model["moe"] = {"experts": 4, "top_k": 4, "width": 32, "shared": 32}
    language = box(0, dp=2, model=model, experts={"ep": 2})
    train = {"precision": precision}
    return spec({"language": language}, microbatches=4, mbs=2, seq=64, train=train)


def test_steps_in_bf16_follow_those_in_float64(
    run_on: Callable[..., list[Any]], device: str
) -> None:
    """Kernels of Mamba-2, grouped products and all-to-alls together, over four microbatches."""
    exact, low = (
        run_on(2, gradients, hybrid_experts(precision), device) for precision in ("fp64", "bf16")
    )
    for want, got in zip(exact, low, strict=True):
        assert want.keys() == got.keys()
        difference = sum(float((got[k] - want[k]).square().sum()) for k in want)
        assert (difference / sum(float(w.square().sum()) for w in want.values())) ** 0.5 < 0.05
