"""Conformers in the oracle: one clip at a time, whole.

Decides: the rows of a clip, by the formulas of the papers: a sum over the distances of each pair,
a sum over the tokens around each token.
Relies on: `oracle_blocks` and `oracle_layers`.
Leaves: where rows go to `oracle`.

Legend: N tokens of a clip, D width, K head size, C channels.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.spec.conformer import ConformerModel
from mimo_launch.verify.oracle_blocks import project
from mimo_launch.verify.oracle_dropout import Weights
from mimo_launch.verify.oracle_layers import layer_norm, linear

EPSILON = 1e-5


def encode_conformer(
    weights: Weights, encoder: str, model: ConformerModel, clip: np.ndarray, first: int
) -> Tensor:
    """Return the rows of a whole log-mel clip: [mels, frames] -> [r, L]."""
    del first  # Its tokens have no numbers: nothing is dropped.
    frames = torch.from_numpy(clip).double()
    if model.sound == "phi4":
        mean, over = (weights[f"{encoder}.bands.{x}"] for x in ("mean", "over_deviation"))
        frames = (frames - mean[:, None]) * over[:, None]
    x_ND = _subsampled(weights, encoder, frames)
    convolved = _convolved_back if model.causal else _convolved
    if model.scale_input:
        x_ND = x_ND * math.sqrt(model.hidden)
    for number in range(model.layers):
        name = f"{encoder}.layers.{number}"
        x_ND = x_ND + _half_mlp(weights, x_ND, name, "first_norm", "first_mlp")
        y = layer_norm(weights, x_ND, f"{name}.attention_norm", EPSILON)
        x_ND = x_ND + _attended(weights, y, f"{name}.attention", encoder, model)
        y = layer_norm(weights, x_ND, f"{name}.conv_norm", EPSILON)
        x_ND = x_ND + convolved(weights, y, f"{name}.conv", model.kernel)
        x_ND = x_ND + _half_mlp(weights, x_ND, name, "mlp_norm", "mlp")
        x_ND = layer_norm(weights, x_ND, f"{name}.norm", EPSILON)
    return project(weights, x_ND, encoder, model)


def _subsampled(weights: Weights, encoder: str, frames: Tensor) -> Tensor:
    """Return the tokens [N, D] of frames [mels, F]."""
    x = frames.T[None]
    for number in (1, 2, 3):
        weight, bias = (weights[f"{encoder}.conv{number}.{x}"] for x in ("weight", "bias"))
        x = F.conv2d(x, weight, bias, stride=2, padding=1, groups=len(x))
        if number > 1:
            weight, bias = (weights[f"{encoder}.map{number}.{x}"] for x in ("weight", "bias"))
            x = torch.einsum("dc,ctm->dtm", weight[:, :, 0, 0], x) + bias[:, None, None]
        x = x.clamp(min=0)
    return linear(weights, x.transpose(0, 1).flatten(1), f"{encoder}.joined")


def _half_mlp(weights: Weights, x_ND: Tensor, name: str, norm: str, mlp: str) -> Tensor:
    y = layer_norm(weights, x_ND, f"{name}.{norm}", EPSILON)
    up = linear(weights, y, f"{name}.{mlp}.up")
    if weights.get(f"{name}.{mlp}.gate.weight") is None:
        inner = up * torch.sigmoid(up)
    else:
        gate = linear(weights, y, f"{name}.{mlp}.gate")
        inner = up * gate * torch.sigmoid(gate)
    return linear(weights, inner, f"{name}.{mlp}.down") / 2


def _attended(
    weights: Weights, x_ND: Tensor, name: str, encoder: str, model: ConformerModel
) -> Tensor:
    """Return attention; a pair of tokens has a score of contents and one of their distance."""
    number, width = x_ND.shape
    q, k, v = (
        linear(weights, x_ND, f"{name}.{each}").view(number, model.heads, -1).transpose(0, 1)
        for each in "qkv"
    )
    root = math.sqrt(q.shape[2])
    if model.distance_bias is None:
        scores = _scores_by_sines(weights, q, k, name, width) / root
    else:
        far = model.distance_bias
        table = weights[f"{encoder}.distances.weight"]
        rows = [
            torch.stack([table[min(max(j - i, -far), far - 1) + far] for j in range(number)])
            for i in range(number)
        ]
        scores = q @ k.mT / root + torch.stack(rows).permute(2, 0, 1)
    shares = torch.softmax(scores, dim=-1)
    return linear(weights, (shares @ v).transpose(0, 1).flatten(1), f"{name}.o")


def _scores_by_sines(weights: Weights, q: Tensor, k: Tensor, name: str, width: int) -> Tensor:
    """Return the scores of contents and of distances, [H, N, N]."""
    heads, number, _ = q.shape
    far = range(1 - number, number)
    waves = [10000.0 ** (-i / width) for i in range(0, width, 2)]
    sines = [[f(each * x) for x in waves for f in (math.sin, math.cos)] for each in far]
    table = linear(weights, torch.tensor(sines, dtype=torch.float64), f"{name}.distances")
    u, w = (weights[f"{name}.bias_{each}"][:, None] for each in "uv")
    places = torch.tensor([[i - j + number - 1 for j in range(number)] for i in range(number)])
    between_HNNK = table.view(len(far), heads, -1).transpose(0, 1)[:, places]
    return (q + u) @ k.mT + ((q + w)[:, :, None] * between_HNNK).sum(dim=-1)


def _convolved(weights: Weights, x_ND: Tensor, name: str, kernel: int) -> Tensor:
    """Return a convolution of gated channels over the tokens around each, normed by statistics."""
    gate = torch.sigmoid(linear(weights, x_ND, f"{name}.gate"))
    y = F.pad(linear(weights, x_ND, f"{name}.value") * gate, (0, 0, kernel // 2, kernel // 2))
    taps = weights[f"{name}.depthwise.weight"].T
    y = torch.stack([y[i : i + len(x_ND)] * taps[i] for i in range(kernel)]).sum(dim=0)
    bias = weights.get(f"{name}.depthwise.bias")
    y = y if bias is None else y + bias
    mean, variance = weights[f"{name}.norm.mean"], weights[f"{name}.norm.variance"]
    y = (y - mean) / (variance + EPSILON).sqrt()
    y = y * weights[f"{name}.norm.weight"] + weights[f"{name}.norm.bias"]
    return linear(weights, y * torch.sigmoid(y), f"{name}.out")


def _convolved_back(weights: Weights, x_ND: Tensor, name: str, kernel: int) -> Tensor:
    """Return a convolution of gated channels over each token and those before it, and two maps."""
    value, gate = (
        linear(weights, x_ND, f"{name}.{each}") + weights[f"{name}.shift.{each}"][:, 0]
        for each in ("value", "gate")
    )
    y = F.pad(value * gate * torch.sigmoid(gate), (0, 0, kernel - 1, 0))
    taps = weights[f"{name}.depthwise.weight"].T
    y = torch.stack([y[i : i + len(x_ND)] * taps[i] for i in range(kernel)]).sum(dim=0)
    bias = weights.get(f"{name}.depthwise.bias")
    y = linear(weights, y if bias is None else y + bias, f"{name}.mixed")
    return linear(weights, y * torch.sigmoid(y), f"{name}.out")
