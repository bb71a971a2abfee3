"""Memory-bound functions of activations.

Decides: their maths, in at least fp32 between inputs and outputs in the model's dtype.
Relies on: `ParallelContext.fused`, which runs each as one pass over memory on GPUs.
Leaves: their use to the layers.

Legend: N tokens, D width, F features; B sequences of S tokens, H heads of size K, with R features
that rotate.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.attention_shapes import Pairs

EPSILON = 1e-5
# Calls a function of tensors with its arguments (`ParallelContext.fused`).
Fused = Callable[..., Any]


def called(function: Callable[..., Any], *args: Any) -> Any:
    """Return a function's result, operation by operation."""
    return function(*args)


def widened(x: Tensor) -> Tensor:
    """Return x in at least fp32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(
    x: Tensor, weight_D: Tensor | None, eps: float = EPSILON, offset: float = 0.0
) -> Tensor:
    """Return x over its root mean square (arXiv:1910.07467), times any weight plus an offset."""
    wide = widened(x)
    weight = None if weight_D is None else weight_D.to(wide.dtype)
    weight = weight + offset if weight is not None and offset else weight
    return F.rms_norm(wide, (x.shape[-1],), weight, eps).to(x.dtype)


def layer_norm(x: Tensor, weight_D: Tensor, bias_D: Tensor | None, eps: float = EPSILON) -> Tensor:
    """Return x with mean 0 and variance 1 (arXiv:1607.06450), times the weight, plus any bias."""
    wide = widened(x)
    weight, bias = weight_D.to(wide.dtype), None if bias_D is None else bias_D.to(wide.dtype)
    return F.layer_norm(wide, (x.shape[-1],), weight, bias, eps).to(x.dtype)


def add_rms_norm(
    x: Tensor, change: Tensor, weight_D: Tensor, eps: float = EPSILON, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return x plus `change`, and the RMSNorm of the sum."""
    total = x + change
    return total, rms_norm(total, weight_D, eps, offset)


def add_layer_norm(
    x: Tensor, change: Tensor, weight_D: Tensor, bias_D: Tensor | None, eps: float = EPSILON
) -> tuple[Tensor, Tensor]:
    """Return x plus `change`, and the LayerNorm of the sum."""
    total = x + change
    return total, layer_norm(total, weight_D, bias_D, eps)


def swiglu(gate_up_NF: Tensor) -> Tensor:
    """Return silu(gate) * up of the two halves [N, F/2] (arXiv:2002.05202)."""
    gate, up = gate_up_NF.chunk(2, dim=-1)
    return F.silu(gate) * up


def geglu_tanh(gate_up_NF: Tensor) -> Tensor:
    """Return gelu(gate) * up of the two halves, with GELU approximated by tanh (same paper)."""
    gate, up = gate_up_NF.chunk(2, dim=-1)
    return gelu_tanh(gate) * up


def clamped_swiglu(gate_up_NF: Tensor) -> Tensor:
    """Return gate * sigmoid(1.702 gate) * (up + 1) of the two halves, clamped at 7 (GPT-OSS)."""
    gate, up = gate_up_NF.chunk(2, dim=-1)
    return quick_gelu(gate.clamp(max=7.0)) * (up.clamp(-7.0, 7.0) + 1)


def gelu(x: Tensor) -> Tensor:
    """Return the exact GELU (arXiv:1606.08415)."""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return the tanh approximation of GELU (same paper, section 2)."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """Return x * sigmoid(1.702 x), the sigmoid approximation of GELU (same section)."""
    return x * torch.sigmoid(1.702 * x)


def squared_relu(x: Tensor) -> Tensor:
    """Return relu(x)^2 (Primer, arXiv:2109.08668)."""
    return F.relu(x).square()


def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x) (same section)."""
    return F.silu(x)


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "squared_relu": squared_relu,
    "silu": silu,
}
# Of these torch has a kernel that reads and writes once; it starts sooner than a compiled pass.
KERNELS = frozenset({gelu, gelu_tanh, silu})
# By the activation of the gate.
GATED = {"silu": swiglu, "gelu_tanh": geglu_tanh, "clamped_silu": clamped_swiglu}


def scaled_tokens(x_ND: Tensor, factor_N: Tensor) -> Tensor:
    """Return x times the factor of its token, in the dtype of x."""
    return (x_ND * factor_N.unsqueeze(-1)).to(x_ND.dtype)


def soft_capped(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap) (Gemma 2, arXiv:2408.00118, section 2)."""
    return (torch.tanh(widened(x) / cap) * cap).to(x.dtype)


def gated_squares(x_NF: Tensor, gate_NF: Tensor, groups: int) -> Tensor:
    """Return the squares of x * silu(gate), summed over each of `groups` equal parts."""
    return _gated(x_NF, gate_NF, groups).square().sum(-1)


def gated_scaled(x_NF: Tensor, gate_NF: Tensor, scale_Ng: Tensor, weight_F: Tensor) -> Tensor:
    """Return x * silu(gate) * weight, with a scale for each of g equal parts, in the dtype of x."""
    scaled = _gated(x_NF, gate_NF, scale_Ng.shape[1]) * scale_Ng.unsqueeze(-1)
    return (scaled.flatten(1) * widened(weight_F)).to(x_NF.dtype)


def _gated(x_NF: Tensor, gate_NF: Tensor, groups: int) -> Tensor:
    product = widened(x_NF) * F.silu(widened(gate_NF))
    return product.view(len(product), groups, product.shape[1] // groups)


def gated_head_norm(
    x_NF: Tensor, gate_NF: Tensor, weight_K: Tensor, eps: float = EPSILON
) -> Tensor:
    """Return the RMSNorm of each head of size K, times silu(gate), in the dtype of x."""
    heads_NHK = widened(x_NF).view(len(x_NF), -1, len(weight_K))
    normed = F.rms_norm(heads_NHK, weight_K.shape, weight_K.to(heads_NHK.dtype), eps).flatten(1)
    return (normed * F.silu(widened(gate_NF))).to(x_NF.dtype)


def sigmoid_gated(x_NF: Tensor, gate_NHK: Tensor) -> Tensor:
    """Return x times the sigmoid of its gate."""
    return (x_NF.reshape(gate_NHK.shape) * torch.sigmoid(gate_NHK)).flatten(1)


def grown(x_SHK: Tensor, factor_S: Tensor) -> Tensor:
    """Return x times the factor of its position."""
    return (widened(x_SHK) * factor_S[..., None, None]).to(x_SHK.dtype)


def rotated(
    x_SHK: Tensor, cos_SR: Tensor, sin_SR: Tensor, factor_S: Tensor | None = None
) -> Tensor:
    """Return x with its first R features rotated by its positions (RoPE, arXiv:2104.09864).

    All features are multiplied by the factor of their position, if factors are given.

    Shapes: more dimensions may come before S, in all arguments or only in x.
    """
    size = cos_SR.shape[-1]
    wide = x_SHK[..., :size].to(cos_SR.dtype)
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    out, rest = wide * cos_SR.unsqueeze(-2) + turned * sin_SR.unsqueeze(-2), x_SHK[..., size:]
    if factor_S is not None:
        out, rest = grown(out, factor_S), grown(rest, factor_S)
    out, rest = out.to(x_SHK.dtype), rest.to(x_SHK.dtype)
    return torch.cat([out, rest], dim=-1) if rest.shape[-1] else out


def rotated_interleaved(
    x_SHK: Tensor, cos_SR: Tensor, sin_SR: Tensor, factor_S: Tensor | None = None
) -> Tensor:
    """Return `rotated` of x with adjacent pairs; first features of pairs come first in the result.

    Scores do not change if queries and keys are permuted alike.
    """
    return rotated(_in_halves(x_SHK, cos_SR.shape[-1]), cos_SR, sin_SR, factor_S)


def _in_halves(x_K: Tensor, size: int) -> Tensor:
    """Return x with the first features of pairs first; pairs are in its first `size` numbers."""
    return torch.cat([x_K[..., :size:2], x_K[..., 1:size:2], x_K[..., size:]], dim=-1)


def rotated_by_halves(
    x_SHK: Tensor, cos_SK: Tensor, sin_SK: Tensor, factor_S: Tensor | None = None
) -> Tensor:
    """Return `rotated` of x with pairs inside each half of a head, with numbers in another order.

    Scores do not change if queries and keys are permuted alike.
    """
    return rotated(_halves_apart(x_SHK), cos_SK, sin_SK, factor_S)


def _halves_apart(x_K: Tensor) -> Tensor:
    """Return x with the first features of the pairs of both halves first."""
    first, second, third, fourth = x_K.chunk(4, dim=-1)
    return torch.cat([first, third, second, fourth], dim=-1)


def placed_heads(
    q: Tensor,
    k: Tensor,
    cos_SR: Tensor | None,
    sin_SR: Tensor | None,
    factor_S: Tensor | None = None,
    weights_K: tuple[Tensor | None, Tensor | None] | None = None,
    eps: float = EPSILON,
    offset: float = 0.0,
    pairs: Pairs = "apart",
    norm_last: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return queries and keys: the RMSNorm of each head, rotated; queries times their factors.

    Each is left out where its tensors are None. With `norm_last` heads are rotated before their
    norm. Shapes as in `rotated`. Raises: ValueError for norms of heads rotated by halves.
    """
    if norm_last and weights_K is not None and cos_SR is not None:
        if pairs == "in_halves":
            raise ValueError("no norm follows a rotation by halves")
        q, k = placed_heads(q, k, cos_SR, sin_SR, pairs=pairs)
        if pairs == "neighbours":
            # The rotation left heads in this order.
            size = cos_SR.shape[-1]
            of_q, of_k = (None if x is None else _in_halves(x, size) for x in weights_K)
            weights_K = of_q, of_k
        cos_SR = sin_SR = None
    if weights_K is not None:
        q, k = (rms_norm(x, each, eps, offset) for x, each in zip((q, k), weights_K, strict=True))
    if cos_SR is None or sin_SR is None:
        return (q if factor_S is None else grown(q, factor_S)), k
    turns = {"neighbours": rotated_interleaved, "in_halves": rotated_by_halves}
    turn = turns.get(pairs, rotated)
    return turn(q, cos_SR, sin_SR, factor_S), turn(k, cos_SR, sin_SR)
