"""Blocks of the oracle from their definition: MLPs, experts and their load; blocks of encoders.

Decides: what an MLP, a block of an encoder or flow and a projector compute; that every expert
computes every token, and most outputs are multiplied by zero.
Relies on: weights by their full names; `oracle_layers`.
Leaves: the inputs, and which tokens attend to which, to `oracle_encoders` and `oracle_language`.

Legend: S tokens of a record, T tokens of a sample (of all its records), N tokens of an image or a
clip, E experts, D width.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.spec.encoders import EncoderBlocks, ProjectorActivation, TransformerEncoder
from mimo_launch.spec.layers import Moe
from mimo_launch.spec.ovis2_vision import Ovis2VisionModel
from mimo_launch.verify.oracle_dropout import Weights
from mimo_launch.verify.oracle_layers import (
    attend,
    layer_norm,
    linear,
    pairs_in_halves,
    rms_norm,
    turned,
)


@dataclass(slots=True)
class Load:
    """The decisions of the routers for one sample, by layer and record.

    Both fields are [T, E]: scores divided by their sum, and 1 where a token chose an expert.
    """

    scores: dict[str, list[Tensor]] = field(default_factory=dict)
    chosen: dict[str, list[Tensor]] = field(default_factory=dict)

    @property
    def balanced(self) -> set[str]:
        """The layers whose scores have a gradient."""
        return {name for name, each in self.scores.items() if any(x.requires_grad for x in each)}

    def loss(self, moe: Moe, layers: AbstractSet[str]) -> Tensor:
        """Return the balance loss: E / k * sum of (share of tokens) * (mean score), of `layers`."""
        total = torch.zeros((), dtype=torch.float64)
        for layer in layers & self.scores.keys():
            scores = self.scores[layer]
            share = torch.cat(self.chosen[layer]).mean(dim=0)
            total = total + (share * torch.cat(scores).mean(dim=0)).sum()
        return total * moe.aux_loss * moe.experts / moe.top_k


@dataclass(frozen=True, slots=True)
class RecordText:
    """The text of a record, as layers need it.

    `documents` is the document of each token, [S]. Tokens where `counts` [S] is true count in
    `load`, the others are padding. If tokens of an image attend to each other, `images` is the
    image of each token, 0 for text; `prompts` likewise. `angles` are those of rotary embeddings;
    `local_angles` replace them in layers with windows, if given. `vectors` are per-layer
    embeddings, [S, layers, P].
    """

    documents: Tensor
    counts: Tensor
    load: Load
    images: Tensor | None = None
    prompts: Tensor | None = None
    angles: Tensor | None = None
    local_angles: Tensor | None = None
    vectors: Tensor | None = None


def moved_biases(weights: Weights, loads: Sequence[Load], moe: Moe) -> dict[str, Tensor]:
    """Return the biases of experts after a step: bias + rate * sign(mean load - load).

    Loads are over all tokens of all samples (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).
    """
    moved = {}
    for layer in {layer for load in loads for layer in load.chosen}:
        bias = weights[f"{layer}.router.expert_bias"]
        tokens_E = torch.cat([x for load in loads for x in load.chosen.get(layer, [])]).sum(dim=0)
        step = (moe.bias_update_rate or 0.0) * torch.sign(tokens_E.mean() - tokens_E)
        moved[f"{layer}.router.expert_bias"] = bias + step
    return moved


NORMS: Mapping[str, Callable[[Weights, Tensor, str, float], Tensor]] = {
    "layer": layer_norm,
    "rms": rms_norm,
}


def clamped_swiglu(gate: Tensor, inner: Tensor) -> Tensor:
    """Return the gated activation of GPT-OSS, with both inputs clamped at 7."""
    gate = torch.minimum(gate, torch.full_like(gate, 7.0))
    inner = torch.where(inner > 7, 7.0, torch.where(inner < -7, -7.0, inner))
    return gate / (1 + torch.exp(-1.702 * gate)) * (1 + inner)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return the approximation of GELU by tanh (arXiv:1606.08415, section 2)."""
    return 0.5 * x * (1 + torch.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))


def swiglu(gate: Tensor, inner: Tensor) -> Tensor:
    """Return the activation gated by SiLU (arXiv:2002.05202)."""
    return F.silu(gate) * inner


GATES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": swiglu,
    "gelu_tanh": lambda gate, inner: gelu_tanh(gate) * inner,
    "clamped_silu": clamped_swiglu,
}


# Of one number, by the activation of a decoder's MLPs.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "gelu_tanh": gelu_tanh,
    "gelu_tanh_without_gate": gelu_tanh,
    "clamped_silu": lambda x: clamped_swiglu(x, torch.zeros_like(x)),
    "squared_relu": lambda x: torch.where(x > 0, x * x, torch.zeros_like(x)),
}


def in_best_groups(scores_E: Tensor, moe: Moe) -> Tensor:
    """Return the scores of a token with -inf for experts outside its best groups.

    Source: arXiv:2412.19437, section 2.1.2.
    """
    size = moe.experts // moe.groups
    groups = [sorted(scores_E[i : i + size].tolist()) for i in range(0, moe.experts, size)]
    best = sorted(range(moe.groups), key=lambda i: -sum(groups[i][-2:]))
    left = scores_E.clone()
    for group in best[moe.top_groups :]:
        left[group * size : (group + 1) * size] = float("-inf")
    return left


def routed(weights: Weights, name: str, moe: Moe, x_SD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores of experts, 1 where a token chose one, and factors of answers, [S, E]."""
    logits = linear(weights, x_SD, f"{name}.router")
    scores = logits.softmax(dim=-1) if moe.score == "softmax" else logits.sigmoid()
    chosen = torch.zeros_like(scores)
    ranked = scores.detach()
    if moe.bias_update_rate is not None:
        ranked = ranked + weights[f"{name}.router.expert_bias"]
    for token, row in enumerate(ranked):
        allowed = in_best_groups(row, moe)
        chosen[token, allowed.argsort(descending=True)[: moe.top_k]] = 1.0
    gates = scores * chosen
    if moe.normalize:
        gates = gates / gates.sum(dim=-1, keepdim=True)
    if moe.learned_scale:
        gates = gates * weights[f"{name}.router.scale"]
    return scores, chosen, gates


def mixture(
    weights: Weights,
    name: str,
    moe: Moe,
    x_SD: Tensor,
    text: RecordText,
    activation: str,
    stream_SD: Tensor,
    norm: Callable[[Tensor, str], Tensor],
) -> Tensor:
    """Return the output of the mixture of experts `name` for every token.

    `x_SD` is the stream after the norm of the layer; norms of their own, if any, read the stream.
    """
    read_SD = routed_SD = x_SD
    if moe.norms_apart:
        read_SD = norm(stream_SD, f"{name}.router.norm") / math.sqrt(x_SD.shape[1])
        routed_SD = norm(stream_SD, f"{name}.routed_norm")
    scores, chosen, gates = routed(weights, name, moe, read_SD)
    out = torch.zeros_like(x_SD)
    for expert in range(moe.experts):
        score = moe.scale * gates[:, expert : expert + 1]
        if moe.scale_inputs:
            answer = mlp(weights, f"{name}.experts.{expert}", score * routed_SD, activation)
            out = out + chosen[:, expert : expert + 1] * answer
        else:
            out = out + score * mlp(weights, f"{name}.experts.{expert}", routed_SD, activation)
    if moe.norms_apart:
        out = norm(out, f"{name}.routed_post_norm")
    if moe.shared:
        answer = mlp(weights, f"{name}.shared", x_SD, activation)
        if moe.shared_gate:
            answer = answer / (1 + (-linear(weights, x_SD, f"{name}.shared_gate")).exp())
        if moe.norms_apart:
            answer = norm(answer, f"{name}.shared_post_norm")
        out = out + answer
    if text.counts.any():
        parts = scores / scores.sum(dim=-1, keepdim=True)
        text.load.scores.setdefault(name, []).append(parts[text.counts])
        text.load.chosen.setdefault(name, []).append(chosen[text.counts])
    return out


def mlp(weights: Weights, name: str, x_SD: Tensor, activation: str = "silu") -> Tensor:
    """Return the output of MLP `name`, whose gate has the activation if it has a gate."""
    inner = linear(weights, x_SD, f"{name}.up")
    if activation in GATES:
        inner = GATES[activation](linear(weights, x_SD, f"{name}.gate"), inner)
    elif activation == "xielu":
        inner = xielu(weights, f"{name}.activation", inner)
    else:
        inner = activated(inner, activation)
    return linear(weights, inner, f"{name}.down")


def xielu(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Return xIELU from its definition (arXiv:2411.13010), its positive numbers by softplus."""
    beta, eps = weights[f"{name}.beta"], weights[f"{name}.eps"]
    above, below = ((1 + weights[f"{name}.alpha_{x}"].exp()).log() for x in "pn")
    depth = torch.where(x < eps, x, eps).exp() - 1 - x
    return beta * x + torch.where(x > 0, above * x**2, (beta + below) * depth)


# An RMSNorm of each head by itself, or of all heads together.
QkNorm = Literal["each", "together"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParts:
    """What a block of an encoder has; by default as in a connector.

    `activation` is as in `mlp`. `qk_norm`: an RMSNorm of each head of queries and keys, or of all
    heads together; `value_norm`: values over their root mean square. Scores are divided by the root
    of the size of a head if `divides`. `pairs` of a head rotate together: numbers half a head
    apart, neighbours, or numbers in the same half. `post_norms` are after attention and MLP.
    """

    heads: int
    kv_heads: int
    norm: str = "layer"
    eps: float = 1e-5
    activation: str = "gelu"
    qk_norm: QkNorm | None = None
    value_norm: bool = False
    divides: bool = True
    pairs: Literal["apart", "neighbours", "in_halves"] = "apart"
    post_norms: bool = False
    layer_scale: bool = False


def blocks(
    weights: Weights,
    x_ND: Tensor,
    encoder: str,
    model: EncoderBlocks,
    groups: list[list[int]] | None = None,
) -> Tensor:
    """Return the tokens after all blocks; they attend inside each of `groups`, or all to all."""
    parts = BlockParts(heads=model.heads, kv_heads=model.heads)
    for i in range(model.layers):
        x_ND = block(weights, x_ND, f"{encoder}.layers.{i}", parts, groups=groups)
    return x_ND


def block(
    weights: Weights,
    x_ND: Tensor,
    layer: str,
    parts: BlockParts,
    turn: Tensor | None = None,
    groups: list[list[int]] | None = None,
) -> Tensor:
    """Return the tokens after a block; `turn` holds rotary angles.

    Tokens attend inside each of `groups`, or all to all.
    """
    norm = NORMS[parts.norm]
    for name in ("attention", "mlp"):
        added = norm(weights, x_ND, f"{layer}.{name}_norm", parts.eps)
        if name == "attention":
            added = _attended(weights, added, f"{layer}.attention", parts, turn, groups)
        else:
            added = mlp(weights, f"{layer}.mlp", added, parts.activation)
        if parts.post_norms:
            added = norm(weights, added, f"{layer}.post_{name}_norm", parts.eps)
        if parts.layer_scale:
            added = added * weights[f"{layer}.{name}_scale.weight"]
        x_ND = x_ND + weights.added(added, f"{layer}.drop_{name}")
    return x_ND


def _attended(
    weights: Weights,
    y_ND: Tensor,
    name: str,
    parts: BlockParts,
    turn: Tensor | None,
    groups: list[list[int]] | None,
) -> Tensor:
    """Return the output of the attention `name`."""
    q, k, v = (
        linear(weights, y_ND, f"{name}.{p}").view(len(y_ND), heads, -1)
        for p, heads in (("q", parts.heads), ("k", parts.kv_heads), ("v", parts.kv_heads))
    )
    if parts.qk_norm is not None:
        for_norm = [x if parts.qk_norm == "each" else x.flatten(1) for x in (q, k)]
        q, k = (
            rms_norm(weights, x, f"{name}.{p}_norm", parts.eps).view(len(y_ND), -1, q.shape[-1])
            for x, p in zip(for_norm, "qk", strict=True)
        )
    if parts.value_norm:
        v = v / (v.square().mean(dim=-1, keepdim=True) + parts.eps).sqrt()
    k, v = (x.repeat_interleave(parts.heads // parts.kv_heads, dim=1) for x in (k, v))
    if turn is not None:
        q, k = (_turned(each, turn, parts.pairs) for each in (q, k))
    attended, scale = torch.zeros_like(q).flatten(1), q.shape[-1] ** -0.5 if parts.divides else 1.0
    for group in groups or [list(range(len(y_ND)))]:
        attended = attended.index_add(
            0, torch.tensor(group), attend(scale * q[group], k[group], v[group])
        )
    return linear(weights, attended, f"{name}.o")


def _turned(x_NHK: Tensor, turn: Tensor, pairs: str) -> Tensor:
    """Return x turned by its angles [N, K/2], one for each of the `pairs`."""
    if pairs == "in_halves":
        halves = zip(x_NHK.chunk(2, dim=-1), turn.chunk(2, dim=-1), strict=True)
        return torch.cat([turned(*each) for each in halves], dim=-1)
    if pairs == "neighbours":
        x_NHK = pairs_in_halves(x_NHK, x_NHK.shape[-1])
    return turned(x_NHK, turn)


def project(
    weights: Weights,
    x_ND: Tensor,
    encoder: str,
    model: TransformerEncoder,
    activation: ProjectorActivation = "gelu",
) -> Tensor:
    """Return the rows after the projector."""
    if model.projector == "linear":
        return linear(weights, x_ND, f"{encoder}.projector.linear")
    if model.projector == "gated":
        return _project_gated(weights, x_ND, f"{encoder}.projector", model.patch_width, activation)
    if isinstance(model, Ovis2VisionModel):
        return _project_by_words(weights, x_ND, f"{encoder}.projector")
    hidden = linear(weights, x_ND, f"{encoder}.projector.up")
    if model.projector == "swiglu":
        hidden = swiglu(linear(weights, x_ND, f"{encoder}.projector.gate"), hidden)
    else:
        hidden = activated(hidden, activation)
    return linear(weights, hidden, f"{encoder}.projector.down")


def _project_by_words(weights: Weights, x_NW: Tensor, name: str) -> Tensor:
    """Return rows as sums of the vectors of words, each times its share of a softmax."""
    y = layer_norm(weights, linear(weights, x_NW, f"{name}.head"), f"{name}.head_norm", 1e-5)
    shares = torch.exp(y - y.max(dim=1, keepdim=True).values)
    return shares / shares.sum(dim=1, keepdim=True) @ weights[f"{name}.table.weight"]


def _project_gated(
    weights: Weights, x_NW: Tensor, name: str, width: int, activation: ProjectorActivation
) -> Tensor:
    """Return the rows of a gated projector; a row of `x_NW` is patches of `width` side by side."""
    patches = torch.split(x_NW, width, dim=1)
    flat = weights[f"{name}.convolution.weight"]
    kernel = flat.view(len(flat), width, len(patches))
    y = sum((each @ kernel[..., place].T for place, each in enumerate(patches)), x_NW.new_zeros(1))
    y = y + weights.get(f"{name}.convolution.bias", torch.zeros(1, dtype=y.dtype))
    y = layer_norm(weights, linear(weights, y, f"{name}.middle"), f"{name}.middle_norm", 1e-5)
    return mlp(weights, f"{name}.mlp", activated(y, activation))


def activated(x: Tensor, activation: str) -> Tensor:
    """Compute an activation by its definition: a GELU (exact, by tanh, by a sigmoid), relu^2."""
    if activation == "gelu":
        return 0.5 * x * (1 + torch.erf(x / 2**0.5))
    if activation in ("gelu_tanh", "gelu_tanh_without_gate"):
        return gelu_tanh(x)
    if activation == "squared_relu":
        return torch.where(x > 0, x * x, torch.zeros_like(x))
    return x / (1 + torch.exp(-1.702 * x))
