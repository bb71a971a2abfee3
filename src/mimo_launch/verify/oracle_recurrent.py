"""Recurrent layers of the oracle, and short convolutions: one sequence at a time, whole.

Decides: what they compute, from their definition: token by token, head by head.
Relies on: `oracle_layers`.
Leaves: their place in a model to `oracle_language`.

Legend: S tokens, F features, H heads of P channels, K numbers of a state.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.spec.hybrid import DeltaNetSizes, MambaSizes
from mimo_launch.verify.oracle_dropout import Weights
from mimo_launch.verify.oracle_layers import linear, rms_norm


def mamba(
    weights: Weights, y: Tensor, name: str, sizes: MambaSizes, eps: float, documents: Tensor
) -> Tensor:
    """Return the output of the state space model, by token and head (arXiv:2405.21060)."""
    z = linear(weights, y, f"{name}.z")
    x, b, c = (
        _convolved(weights, linear(weights, y, f"{name}.{p}"), f"{name}.conv.{p}", documents)
        for p in "xBC"
    )
    step = F.softplus(linear(weights, y, f"{name}.dt") + weights[f"{name}.dt_bias"])
    step = step.clamp(min=sizes.min_step)
    a = -weights[f"{name}.A_log"].exp()
    x_SHP = x.view(len(y), sizes.heads, sizes.head_dim)
    b_SHK, c_SHK = (
        t.view(len(y), sizes.groups, -1).repeat_interleave(sizes.heads // sizes.groups, dim=1)
        for t in (b, c)
    )
    begins_S = torch.ones(len(y), dtype=torch.bool)
    begins_S[1:] = documents[1:] != documents[:-1]
    kept_SH11 = ((step * a).exp() * ~begins_S[:, None])[:, :, None, None]
    added_SHPK = torch.einsum("sh,shp,shk->shpk", step, x_SHP, b_SHK)
    state, states = torch.zeros_like(added_SHPK[0]), []
    for kept, added in zip(kept_SH11, added_SHPK, strict=True):
        state = kept * state + added
        states.append(state)
    mixed = torch.einsum("shpk,shk->shp", torch.stack(states), c_SHK)
    mixed = mixed + weights[f"{name}.D"][:, None] * x_SHP
    gated = mixed.flatten(1) * z * torch.sigmoid(z)
    grouped = gated.view(len(y), sizes.groups, -1)
    normed = grouped / (grouped.square().mean(-1, keepdim=True) + eps).sqrt()
    return linear(weights, normed.flatten(1) * weights[f"{name}.norm.weight"], f"{name}.out")


def deltanet(
    weights: Weights, y: Tensor, name: str, sizes: DeltaNetSizes, eps: float, documents: Tensor
) -> Tensor:
    """Return the output of the delta rule, by token (arXiv:2412.06464, equation 10)."""
    q, k, v = (
        _convolved(weights, linear(weights, y, f"{name}.{p}"), f"{name}.conv.{p}", documents)
        for p in "qkv"
    )
    q_SHK, k_SHK = (
        _of_length_1(t.view(len(y), sizes.groups, -1)).repeat_interleave(
            sizes.heads // sizes.groups, dim=1
        )
        for t in (q, k)
    )
    v_SHP = v.view(len(y), sizes.heads, sizes.head_dim)
    rate = weights[f"{name}.A_log"].exp()
    kept_SH = (
        -rate * F.softplus(linear(weights, y, f"{name}.a") + weights[f"{name}.dt_bias"])
    ).exp()
    strength_SH = linear(weights, y, f"{name}.b").sigmoid()
    begins_S = torch.ones(len(y), dtype=torch.bool)
    begins_S[1:] = documents[1:] != documents[:-1]
    identity = torch.eye(sizes.key_dim, dtype=y.dtype)
    forgotten_SHKK = torch.einsum("sh,shk,shl->shkl", strength_SH, k_SHK, k_SHK)
    kept_SHKK = (kept_SH * ~begins_S[:, None])[:, :, None, None] * (identity - forgotten_SHKK)
    written_SHPK = torch.einsum("sh,shp,shk->shpk", strength_SH, v_SHP, k_SHK)
    state, states = torch.zeros_like(written_SHPK[0]), []
    for kept, written in zip(kept_SHKK, written_SHPK, strict=True):
        state = state @ kept + written
        states.append(state)
    read_SHP = torch.einsum("shpk,shk->shp", torch.stack(states), q_SHK) / sizes.key_dim**0.5
    z = linear(weights, y, f"{name}.z")
    normed = rms_norm(weights, read_SHP, f"{name}.norm", eps).flatten(1)
    return linear(weights, normed * z * torch.sigmoid(z), f"{name}.out")


def _of_length_1(t: Tensor) -> Tensor:
    return t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def _convolved(weights: Weights, x_SF: Tensor, name: str, documents: Tensor) -> Tensor:
    """Return SiLU of the weighted sum of each token and earlier tokens of its document."""
    sums_SF = _summed(weights, x_SF, name, documents)
    return sums_SF * torch.sigmoid(sums_SF)


def short_conv(weights: Weights, y: Tensor, name: str, documents: Tensor) -> Tensor:
    """Return the output of a short convolution (arXiv:2511.23404, section 2)."""
    b, c, x = (linear(weights, y, f"{name}.{p}") for p in "BCx")
    mixed = c * _summed(weights, b * x, f"{name}.conv", documents)
    return linear(weights, mixed, f"{name}.out")


def _summed(weights: Weights, x_SF: Tensor, name: str, documents: Tensor) -> Tensor:
    """Return the weighted sum of each token and earlier tokens of its document."""
    weight_FW, bias_F = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    sums_SF = torch.zeros_like(x_SF) if bias_F is None else bias_F.expand_as(x_SF)
    width, num = weight_FW.shape[1], len(x_SF)
    for back in range(min(width, num)):
        same_S1 = (documents[back:] == documents[: num - back])[:, None]
        before_SF = F.pad(x_SF[: num - back] * same_S1, (0, 0, back, 0))
        sums_SF = sums_SF + weight_FW[:, width - 1 - back] * before_SF
    return sums_SF
