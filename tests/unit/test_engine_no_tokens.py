"""Blocks of Transformer Engine without a token, with stand-ins that refuse an empty list like it.

The stand-ins have its layers' names, arguments and parameters, and compute with torch.
"""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tests.support.shapes import block_shape  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from mimo_launch.layers.image_contexts import image_context, turned_by_place  # noqa: E402
from mimo_launch.layers.parallel_context import ParallelContext  # noqa: E402
from mimo_launch.layers.te_layers import TeLayers  # noqa: E402
from mimo_launch.models.te_block import TeBlock  # noqa: E402

VIT = block_shape(width=32, heads=4, head_size=8, mlp=64, norm="layer", bias=True)
CPU = torch.device("cpu")


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int, **options: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[0], "an empty list"
        return F.linear(x, self.weight, self.bias)


class LayerNormLinear(Linear):
    def __init__(self, inputs: int, outputs: int, **options: Any) -> None:
        super().__init__(inputs, outputs)
        self.layer_norm_weight = nn.Parameter(torch.ones(inputs))
        self.layer_norm_bias = nn.Parameter(torch.zeros(inputs))

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape[1:]
        return super().forward(F.layer_norm(x, shape, self.layer_norm_weight, self.layer_norm_bias))


def no_attention(*sizes: int, **options: Any) -> nn.Module:
    return nn.Identity()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("in_fp8", [False, True])
def test_without_a_token_a_block_gives_none_and_gradients_of_zeros(
    turned: bool, in_fp8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = SimpleNamespace(
        Linear=Linear, LayerNormLinear=LayerNormLinear, DotProductAttention=no_attention
    )
    context = ParallelContext()
    layers = TeLayers(engine, context, None)
    block = TeBlock(layers, VIT, name="layers.0", recompute="none")
    if in_fp8:
        block.fp8 = SimpleNamespace(running=torch.enable_grad)
    mask = image_context([], range(0), CPU, alone=True)
    if turned:
        mask = turned_by_place(mask, torch.zeros(0, 2), VIT.attention.head_size, torch.float32)
    out = block(torch.empty(0, VIT.width), mask)
    out.sum().backward()
    assert out.shape == (0, VIT.width)
    assert not any(parameter.grad.any() for parameter in block.parameters())


class Mixed(Linear):
    """Stands in for attention."""

    def forward(self, x: Tensor, attention_context: Any) -> Tensor:
        return super().forward(x.tanh())


@pytest.mark.parametrize("parts", [(), ("attention",), ("attention", "mlp")])
def test_parts_of_a_block_run_again_in_its_context(parts: tuple[Any, ...]) -> None:
    engine: Any = SimpleNamespace(
        Linear=Linear, LayerNormLinear=LayerNormLinear, DotProductAttention=no_attention
    )
    x, mask = torch.randn(5, VIT.width), image_context([5], range(5), CPU, alone=True)
    runs, entered = [], []

    def running() -> Any:
        entered.append(None)
        return torch.enable_grad()

    for recompute in ("none", parts or "none"):
        torch.manual_seed(0)
        layers = TeLayers(engine, ParallelContext(), None)
        block = TeBlock(layers, VIT, name="layers.0", recompute=recompute)
        block.attention = Mixed(VIT.width, VIT.width)  # type: ignore[assignment]
        block.fp8 = SimpleNamespace(running=running)  # type: ignore[assignment]
        entered.clear()
        block(x, mask).square().sum().backward()
        runs.append([parameter.grad for parameter in block.parameters()])
    assert len(entered) == 2 + len(parts)
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
