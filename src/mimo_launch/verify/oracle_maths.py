"""What encoders and decoders of the oracle have in common, from its definition.

Decides: nothing; these are the formulas of the papers.
Relies on: weights by their full names.
Leaves: the models to `oracle_encoders` and `oracle`.

Legend: S tokens, H heads, K head size.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def linear(weights: Weights, x: Tensor, name: str) -> Tensor:
    """Return a linear layer, with a bias where it has one."""
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def layer_norm(weights: Weights, x: Tensor, name: str, eps: float) -> Tensor:
    """Return x with mean 0 and variance 1, times the weight, plus the bias."""
    centred = x - x.mean(dim=-1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def rms_norm(weights: Weights, x: Tensor, name: str, eps: float) -> Tensor:
    """Return x over its root mean square, times the weight."""
    scaled = x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return scaled * weights[f"{name}.weight"]


def attend(q_SHK: Tensor, k_SHK: Tensor, v_SHK: Tensor, documents: Tensor | None) -> Tensor:
    """Attend to everything, or with documents to what precedes a token in its own."""
    scores = torch.einsum("shk,thk->hst", q_SHK, k_SHK) / q_SHK.shape[-1] ** 0.5
    if documents is not None:
        size = scores.shape[-1]
        hidden = torch.ones(size, size, dtype=torch.bool).triu(1)
        hidden |= documents[:, None] != documents
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hst,thk->shk", scores.softmax(dim=-1), v_SHK).flatten(1)
