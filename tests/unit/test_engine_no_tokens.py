"""Blocks of Transformer Engine without a token; its stand-ins refuse an empty list as it does."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.engine_stand_ins import stand_in_layers  # noqa: E402
from tests.support.shapes import block_shape  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from mimo_launch.layers.image_contexts import image_context, turned_by_place  # noqa: E402
from mimo_launch.layers.parallel_context import ParallelContext  # noqa: E402
from mimo_launch.models.te_block import TeBlock  # noqa: E402

VIT = block_shape(width=32, heads=4, head_size=8, mlp=64, norm="layer", bias=True)
CPU = torch.device("cpu")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("in_fp8", [False, True])
def test_without_a_token_a_block_gives_none_and_gradients_of_zeros(
    turned: bool, in_fp8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = stand_in_layers(ParallelContext())
    block = TeBlock(layers, VIT, name="layers.0", recompute="none")
    if in_fp8:
        block.fp8 = SimpleNamespace(running=torch.enable_grad, step=128)
    mask = image_context([], range(0), CPU, alone=True)
    if turned:
        mask = turned_by_place(mask, torch.zeros(0, 2), VIT.attention.head_size, torch.float32)
    lengths: set[int] = set()
    block.mlp.register_forward_pre_hook(lambda _, given: lengths.add(given[0].shape[0]))
    out = block(torch.empty(0, VIT.width), mask)
    out.sum().backward()
    assert out.shape == (0, VIT.width)
    assert lengths == {128 if in_fp8 else 1}
    assert not any(parameter.grad.any() for parameter in block.parameters())


class Mixed(nn.Linear):
    """Stands in for attention."""

    def forward(self, x: Tensor, attention_context: Any) -> Tensor:
        return super().forward(x.tanh())


@pytest.mark.parametrize("parts", [(), ("attention",), ("attention", "mlp")])
def test_parts_of_a_block_run_again_in_its_context(parts: tuple[Any, ...]) -> None:
    x, mask = torch.randn(5, VIT.width), image_context([5], range(5), CPU, alone=True)
    runs, entered = [], []

    def running() -> Any:
        entered.append(None)
        return torch.enable_grad()

    for recompute in ("none", parts or "none"):
        torch.manual_seed(0)
        layers = stand_in_layers(ParallelContext())
        block = TeBlock(layers, VIT, name="layers.0", recompute=recompute)
        block.attention = Mixed(VIT.width, VIT.width)  # type: ignore[assignment]
        block.fp8 = SimpleNamespace(running=running)  # type: ignore[assignment]
        entered.clear()
        block(x, mask).square().sum().backward()
        runs.append([parameter.grad for parameter in block.parameters()])
    assert len(entered) == 2 + len(parts)
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
