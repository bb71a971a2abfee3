"""Recomputed parts of layers: the same gradients on every layout and in every kind of layer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support.planted_experts import mixture
from tests.support.proof import failures, verdicts
from tests.support.specs import box, hybrid, spec
from torch import Tensor

from mimo_launch.layers import recompute
from mimo_launch.layers.recompute import Remake, remade
from mimo_launch.spec.spec import Spec

ALL = ["attention", "mlp", "norms"]


def again(*parts: str, **rest: Any) -> dict[str, Any]:
    """A box that recomputes these parts."""
    return box(recompute=list(parts), **rest)


def made(vision: dict[str, Any], language: dict[str, Any], **rest: Any) -> Spec:
    modules = {"vision": vision, "language": language}
    return spec(modules, **({"microbatches": 2, "mbs": 2} | rest))


SP = {"tp": 2, "sequence_parallel": True}
LAYOUTS: dict[str, Callable[[], Spec]] = {
    "all parts, one rank": lambda: made(again(*ALL), again(*ALL)),
    "norms under sequence parallelism": lambda: made(again("norms", **SP), again("norms", **SP)),
    "norms, tp 2": lambda: made(again("norms", tp=2), again("norms", tp=2)),
    "attention, cp 2": lambda: made(again("attention", cp=2), again("attention", cp=2)),
    "mlp and norms, pp 2": lambda: made(again("mlp", dp=2), again("mlp", "norms", pp=2)),
    "norms, fully sharded": lambda: made(
        again("norms", dp=2, sharding="full"), again("norms", "attention", dp=2, sharding="full")
    ),
    "experts": lambda: made(
        again("mlp", dp=4),
        again("norms", tp=2, dp=2, experts={"ep": 2}, model=mixture(width=8, shared=8)),
    ),
    "recomputed experts": lambda: made(
        again("mlp", dp=4),
        again("mlp", tp=2, dp=2, experts={"ep": 2}, model=mixture(width=8, bias_update_rate=0.1)),
    ),
    "a hybrid": lambda: made(
        again("norms"), again(*ALL, tp=2, model=hybrid({"tp": 2}, "M*G-")), seq=16
    ),
    "norms of a hybrid": lambda: made(
        again("norms"), again("norms", tp=2, model=hybrid({"tp": 2}, "M*G-")), seq=16
    ),
    "further tokens": lambda: made(
        again("attention"), again("attention", "norms", model={"mtp": {"depth": 1}})
    ),
    "adapters": lambda: made(
        again("norms", adapter={"rank": 3}), again("norms", tp=2, adapter={"rank": 3})
    ),
    "frozen layers": lambda: made(
        box(frozen=True),
        again("norms", model={"layers": 3}, frozen={"layers": "0-1"}),
    ),
    "packed documents": lambda: made(again("norms", dp=2), again(*ALL, cp=2), packing=True),
    "latent attention": lambda: made(
        again("norms"),
        again(
            "norms",
            tp=2,
            model={"mla": {"kv_rank": 9, "q_rank": 7, "rope_head_dim": 4, "v_head_dim": 6}},
        ),
    ),
    "norms after layers": lambda: made(
        again("norms"), again(*ALL, model={"pre_norms": False, "post_norms": True})
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_recomputed_parts_get_the_gradients_of_one_rank(layout: str) -> None:
    assert not failures(verdicts(LAYOUTS[layout]()))


def other_tensor() -> None:
    """What is made again is not the tensor that was left out."""
    right = recompute._Again.__init__

    def wrong(self: Any, x: Tensor, make: Remake) -> None:
        right(self, x, lambda: 1.01 * make())

    recompute._Again.__init__ = wrong  # type: ignore[method-assign]


def test_a_wrong_norm_in_the_backward_is_rejected() -> None:
    assert failures(verdicts(LAYOUTS["norms, tp 2"](), prepare=other_tensor))


def test_a_tensor_that_is_made_again_is_not_kept_and_made_once() -> None:
    stream, *weights = (
        torch.randn(size, 4, dtype=torch.float64, requires_grad=True) for size in (5, 3, 3)
    )
    times = []

    def make() -> Tensor:
        times.append(None)
        return stream.tanh()

    kept: list[Tensor] = []
    normed = stream.tanh()
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t),
        remade(normed, make),
    ):
        out = sum(torch.nn.functional.linear(normed, each).square().sum() for each in weights)
    assert all(each is not normed for each in kept)
    out.backward()
    assert len(times) == 1
    found = [each.grad for each in (stream, *weights)]
    want = sum((stream.tanh() @ each.t()).square().sum() for each in weights)
    for got, grad in zip(found, torch.autograd.grad(want, (stream, *weights)), strict=True):
        torch.testing.assert_close(got, grad)
