"""Blocks of the oracle's encoders and flows, and their projectors, on the tokens of one image.

Decides: what a block and a projector compute, from their definition.
Relies on: `oracle_layers`.
Leaves: what goes in, and which tokens attend to which, to `oracle_encoders`.

Legend: N tokens of an image or a clip, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mimo_launch.spec.encoders import Activation, EncoderBlocks
from mimo_launch.spec.spec import TransformerEncoder, VitModel
from mimo_launch.verify.oracle_layers import Weights, attend, layer_norm, linear, rms_norm, turned
from mimo_launch.verify.oracle_mlp import gelu_tanh


def blocks(
    weights: Weights, x_ND: Tensor, encoder: str, model: EncoderBlocks, *, eps: float
) -> Tensor:
    """Return the tokens behind the blocks."""
    for i in range(model.layers):
        x_ND = block(weights, x_ND, f"{encoder}.layers.{i}", model, eps=eps)
    return x_ND


def block(
    weights: Weights,
    x_ND: Tensor,
    layer: str,
    model: EncoderBlocks,
    activation: str = "gelu",
    turn: Tensor | None = None,
    *,
    eps: float,
    norm: Callable[[Weights, Tensor, str, float], Tensor] = layer_norm,
    groups: list[list[int]] | None = None,
) -> Tensor:
    """Return the tokens behind a block; `turn` holds rotary angles.

    Tokens attend inside each of `groups`, or all to all.
    """
    y = norm(weights, x_ND, f"{layer}.attention_norm", eps)
    q, k, v = (
        linear(weights, y, f"{layer}.attention.{p}").view(len(y), model.heads, -1) for p in "qkv"
    )
    if isinstance(model, VitModel) and model.qk_norm:
        q, k = (
            rms_norm(weights, x.flatten(1), f"{layer}.attention.{p}_norm", eps).view(x.shape)
            for x, p in ((q, "q"), (k, "k"))
        )
    scaled = isinstance(model, VitModel) and model.layer_scale is not None
    if turn is not None:
        q, k = turned(q, turn), turned(k, turn)
    attended = torch.zeros_like(y)
    for group in groups or [list(range(len(y)))]:
        attended = attended.index_add(
            0, torch.tensor(group), attend(q[group], k[group], v[group], None)
        )
    added = linear(weights, attended, f"{layer}.attention.o")
    x_ND = x_ND + (added * weights[f"{layer}.attention_scale.weight"] if scaled else added)
    y = norm(weights, x_ND, f"{layer}.mlp_norm", eps)
    inner = linear(weights, y, f"{layer}.mlp.up")
    if activation == "swiglu":
        gate = linear(weights, y, f"{layer}.mlp.gate")
        inner = gate / (1 + torch.exp(-gate)) * inner
    else:
        inner = activated(inner, activation)
    added = linear(weights, inner, f"{layer}.mlp.down")
    return x_ND + (added * weights[f"{layer}.mlp_scale.weight"] if scaled else added)


def project(
    weights: Weights,
    x_ND: Tensor,
    encoder: str,
    model: TransformerEncoder,
    activation: Activation = "gelu",
) -> Tensor:
    """Return the rows behind the projector."""
    if model.projector == "linear":
        return linear(weights, x_ND, f"{encoder}.projector.linear")
    hidden = activated(linear(weights, x_ND, f"{encoder}.projector.up"), activation)
    return linear(weights, hidden, f"{encoder}.projector.down")


def activated(x: Tensor, activation: str) -> Tensor:
    """Compute an activation by its definition: exact GELU, GELU by tanh, GELU by a sigmoid."""
    if activation == "gelu":
        return 0.5 * x * (1 + torch.erf(x / 2**0.5))
    if activation == "gelu_tanh":
        return gelu_tanh(x)
    return x / (1 + torch.exp(-1.702 * x))
