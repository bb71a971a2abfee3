"""Mixtures of experts as the oracle has them: every expert on every token, most answers times zero.

Decides: nothing; these are the formulas of the papers.
Relies on: weights by their full names.
Leaves: the rest of a layer to `oracle`.

Legend: S tokens of a record, T tokens of a sample (of all its records), E experts, D width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.spec.experts import Moe
from mimo_launch.verify.oracle_maths import Weights, linear


@dataclass(slots=True)
class Load:
    """What the routers of one sample did, by layer and record: [T, E] scores over their sum, and
    1 where a token chose an expert.
    """  # noqa: D205

    scores: dict[str, list[Tensor]] = field(default_factory=dict)
    chosen: dict[str, list[Tensor]] = field(default_factory=dict)

    def loss(self, moe: Moe) -> Tensor:
        """Return the balance loss: E / k * sum of (share of tokens) * (mean score), per layer."""
        total = torch.zeros((), dtype=torch.float64)
        for layer, scores in self.scores.items():
            share = torch.cat(self.chosen[layer]).mean(dim=0)
            total = total + (share * torch.cat(scores).mean(dim=0)).sum()
        return total * moe.aux_loss * moe.experts / moe.top_k


def moved_biases(weights: Weights, loads: Sequence[Load], moe: Moe) -> dict[str, Tensor]:
    """Return the biases of experts after a step: rate * sign(mean load - load) further.

    Loads are over all tokens of all samples (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).
    """
    moved = {}
    for layer in {layer for load in loads for layer in load.chosen}:
        bias = weights[f"{layer}.router.expert_bias"]
        tokens_E = torch.cat([x for load in loads for x in load.chosen.get(layer, [])]).sum(dim=0)
        step = (moe.bias_update_rate or 0.0) * torch.sign(tokens_E.mean() - tokens_E)
        moved[f"{layer}.router.expert_bias"] = bias + step
    return moved


def mixture(
    weights: Weights, name: str, moe: Moe, x_SD: Tensor, load: Load, num_tokens: int
) -> Tensor:
    """Return the mixture of experts `name` of every token.

    The first `num_tokens` count in `load`, the others are padding.
    """
    logits = linear(weights, x_SD, f"{name}.router")
    scores = logits.softmax(dim=-1) if moe.score == "softmax" else logits.sigmoid()
    chosen = torch.zeros_like(scores)
    ranked = scores.detach()
    if moe.bias_update_rate is not None:
        ranked = ranked + weights[f"{name}.router.expert_bias"]
    for token, row in enumerate(ranked):
        chosen[token, row.argsort(descending=True)[: moe.top_k]] = 1.0
    gates = scores * chosen
    if moe.normalize:
        gates = gates / gates.sum(dim=-1, keepdim=True)
    out = torch.zeros_like(x_SD)
    for expert in range(moe.experts):
        answer = mlp(weights, f"{name}.experts.{expert}", x_SD)
        out = out + moe.scale * gates[:, expert : expert + 1] * answer
    if moe.shared:
        out = out + mlp(weights, f"{name}.shared", x_SD)
    if num_tokens:
        parts = scores / scores.sum(dim=-1, keepdim=True)
        load.scores.setdefault(name, []).append(parts[:num_tokens])
        load.chosen.setdefault(name, []).append(chosen[:num_tokens])
    return out


def mlp(weights: Mapping[str, Tensor], name: str, x_SD: Tensor) -> Tensor:
    """Return the MLP `name`: SwiGLU (arXiv:2002.05202) if it has a gate, else squared ReLU."""
    inner = linear(weights, x_SD, f"{name}.up")
    if f"{name}.gate.weight" in weights:
        inner = F.silu(linear(weights, x_SD, f"{name}.gate")) * inner
    else:
        inner = inner.clamp(min=0) ** 2
    return linear(weights, inner, f"{name}.down")
