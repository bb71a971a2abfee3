"""Stand-ins for the layers of Transformer Engine, which compute with torch on processors.

They have its names, arguments and parameters, cut over tp, and refuse an empty list as it does.
They have no attention of their own.
"""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.te_layers import TeLayers


class RMSNorm(nn.Module):
    def __init__(self, size: int, *, eps: float, dtype: torch.dtype, **options: Any) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Linear(nn.Module):
    """A map that may begin a tensor-parallel region (`column`) or end one (`row`)."""

    def __init__(
        self,
        context: ParallelContext,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
        parallel_mode: str | None,
        params_dtype: torch.dtype,
        **options: Any,
    ) -> None:
        super().__init__()
        self.context, self.mode = context, parallel_mode
        inputs //= context.tp.size if parallel_mode == "row" else 1
        outputs //= context.tp.size if parallel_mode == "column" else 1
        self.weight = nn.Parameter(torch.randn(outputs, inputs, dtype=params_dtype))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=params_dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[0], "an empty list"
        if self.mode == "column":
            return F.linear(self.context.enter(x), self.weight, self.bias)
        if self.mode is None:
            return F.linear(x, self.weight, self.bias)
        out = self.context.leave(F.linear(x, self.weight))
        return out if self.bias is None else out + self.bias


class LayerNormLinear(Linear):
    def __init__(
        self, context: ParallelContext, inputs: int, *rest: Any, normalization: str, **options: Any
    ) -> None:
        super().__init__(context, inputs, *rest, **options)
        self.eps, dtype = options["eps"], options["params_dtype"]
        self.layer_norm_weight = nn.Parameter(torch.ones(inputs, dtype=dtype))
        zeros = nn.Parameter(torch.zeros(inputs, dtype=dtype))
        self.layer_norm_bias = zeros if normalization == "LayerNorm" else None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_normed(self, x))


class LayerNormMLP(nn.Module):
    """SwiGLU without biases."""

    def __init__(
        self,
        context: ParallelContext,
        width: int,
        inner: int,
        *,
        eps: float,
        params_dtype: torch.dtype,
        **options: Any,
    ) -> None:
        super().__init__()
        assert options["activation"] == "swiglu"
        self.context, self.eps, own = context, eps, inner // context.tp.size
        self.layer_norm_weight = nn.Parameter(torch.ones(width, dtype=params_dtype))
        self.layer_norm_bias = None
        self.fc1_weight = nn.Parameter(torch.randn(2 * own, width, dtype=params_dtype))
        self.fc2_weight = nn.Parameter(torch.randn(width, own, dtype=params_dtype))

    def forward(self, x: Tensor) -> Tensor:
        entered = self.context.enter(_normed(self, x))
        gate, up = F.linear(entered, self.fc1_weight).chunk(2, dim=1)
        return self.context.leave(F.linear(F.silu(gate) * up, self.fc2_weight))


class DotProductAttention(nn.Module):
    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__()

    def forward(self, q: Tensor, *others: Tensor, **options: Any) -> Tensor:
        raise NotImplementedError("attention of the package")


def _normed(layer: Any, x: Tensor) -> Tensor:
    if layer.layer_norm_bias is None:
        return F.rms_norm(x, x.shape[-1:], layer.layer_norm_weight, layer.eps)
    return F.layer_norm(x, x.shape[-1:], layer.layer_norm_weight, layer.layer_norm_bias, layer.eps)


def stand_in_layers(context: ParallelContext) -> TeLayers:
    """Return a maker of stand-ins in place of `te_layers`."""
    package: Any = SimpleNamespace(
        RMSNorm=RMSNorm,
        DotProductAttention=DotProductAttention,
        Linear=lambda *sizes, **options: Linear(context, *sizes, **options),
        LayerNormLinear=lambda *sizes, **options: LayerNormLinear(context, *sizes, **options),
        LayerNormMLP=lambda *sizes, **options: LayerNormMLP(context, *sizes, **options),
    )
    return TeLayers(package, context, None)
