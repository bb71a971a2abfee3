"""Language models and talkers of the oracle: one sequence at a time, whole.

Decides: what the layers of a decoder and of a hybrid pattern compute, from their definition: the
state space model token by token, head by head; what a talker makes of codes.
Relies on: `oracle_layers`.
Leaves: embedding, the last norm and the loss of language to `oracle`.

Legend: S tokens, D width, H heads of P channels, G groups of K numbers.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.data.noise import Noise
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.language_models import DecoderBlocks, HybridModel, MambaSizes
from mimo_launch.spec.spec import DecoderModel, Model, TalkerModel
from mimo_launch.verify.oracle_layers import (
    Load,
    RecordText,
    Weights,
    attend,
    frequencies,
    gelu_tanh,
    linear,
    mixture,
    mlp,
    rms_norm,
    text_angles,
    turned,
)


def decoder_layers(
    weights: Weights,
    x_SD: Tensor,
    model: DecoderBlocks,
    text: RecordText,
    angles: Tensor,
    deep: Mapping[int, Tensor] | None = None,
    *,
    local_angles: Tensor | None = None,
    name: str = LANGUAGE,
) -> Tensor:
    """Return the stream behind the last layer, [S, D]; `angles` are for `turned`.

    `local_angles` are those in layers with windows, if they differ. `deep` is added behind layers.
    """
    heads, kv_heads = model.heads, model.num_kv_heads
    kind, more = kind_of(model), model if isinstance(model, DecoderModel) else None
    norm = partial(rms_norm, weights, eps=model.norm_eps, offset=bool(more and more.norm_offset))
    activation = gelu_tanh if more and more.activation == "gelu_tanh" else F.silu
    window = more.sliding_window if more else None
    for i in range(model.layers):
        layer = f"{name}.layers.{i}"
        is_local = window is not None and i not in window.full
        y = norm(x_SD, f"{layer}.attention_norm")
        q = linear(weights, y, f"{layer}.attention.q").view(len(y), heads, -1)
        k = linear(weights, y, f"{layer}.attention.k").view(len(y), kv_heads, -1)
        v = linear(weights, y, f"{layer}.attention.v").view(len(y), kv_heads, -1)
        if model.qk_norm:
            q, k = norm(q, f"{layer}.attention.q_norm"), norm(k, f"{layer}.attention.k_norm")
        turns = angles if local_angles is None or not is_local else local_angles
        q, k = turned(q, turns), turned(k, turns)
        k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        attended = attend(
            q,
            k,
            v,
            text.documents,
            window=window.size if window is not None and is_local else None,
            size=more.query_pre_attn_scalar if more else None,
        )
        change = linear(weights, attended, f"{layer}.attention.o")
        if more and more.post_norms:
            change = norm(change, f"{layer}.post_attention_norm")
        x_SD = x_SD + change
        y = norm(x_SD, f"{layer}.mlp_norm")
        if kind.moe is not None and kind.has_experts(i):
            change = mixture(weights, f"{layer}.mlp", kind.moe, y, text, activation)
        else:
            change = mlp(weights, f"{layer}.mlp", y, activation)
        if more and more.post_norms:
            change = norm(change, f"{layer}.post_mlp_norm")
        x_SD = x_SD + change
        if deep and i in deep:
            x_SD = x_SD + deep[i]
    return x_SD


def speech_loss(
    weights: Weights,
    name: str,
    model: Model,
    codes: np.ndarray,
    read: Mapping[str, Tensor],
    draw: Callable[[tuple[int, int]], Noise],
) -> tuple[Tensor, int]:
    """Return the loss of a talker for one clip, summed over its rows, and its right codes.

    `codes` are [codebooks, frames]. A talker draws no noise. Raises: TypeError for another model.
    """
    if not isinstance(model, TalkerModel):
        raise TypeError(f"no oracle for talker {name} of kind {model.kind}")
    clip = [[model.start_code] * len(codes), *codes.T.tolist(), [model.end_code] * len(codes)]
    (read_rE,) = read.values()
    table = weights[f"{name}.codes.weight"]
    frames = [
        torch.stack([table[book * model.vocab + code] for book, code in enumerate(frame)]).sum(0)
        for frame in clip[:-1]
    ]
    x_SD = linear(weights, torch.cat([read_rE, torch.stack(frames)]), f"{name}.project")
    text = RecordText(torch.zeros(len(x_SD)), len(x_SD), Load())
    turns = frequencies(model.head_size, model.rope_theta, model.rope_scaling)
    angles = text_angles(len(x_SD), turns)
    x_SD = decoder_layers(weights, x_SD, model, text, angles, name=name)
    x_ND = rms_norm(weights, x_SD[len(read_rE) :], f"{name}.norm", model.norm_eps)
    losses, right = [], 0
    for book, said in enumerate(torch.tensor(clip[1:]).T):
        logits = linear(weights, x_ND, f"{name}.heads.{book}")
        losses.append(F.cross_entropy(logits, said, reduction="sum"))
        right += int((logits.argmax(dim=1) == said).sum())
    return torch.stack(losses).mean(), right


def hybrid_layers(
    weights: Weights,
    x_SD: Tensor,
    model: HybridModel,
    text: RecordText,
    deep: Mapping[int, Tensor],
) -> Tensor:
    """Return the stream behind the last layer, [S, D]; `deep` is added behind layers."""
    for number, letter in enumerate(model.pattern):
        layer = f"language.layers.{number}"
        y = rms_norm(weights, x_SD, f"{layer}.norm", model.norm_eps)
        if letter == "M" and model.mamba is not None:
            change = _mamba(
                weights, y, f"{layer}.mamba", model.mamba, model.norm_eps, text.documents
            )
        elif letter == "*":
            change = _attention(weights, y, f"{layer}.attention", model, text.documents)
        elif letter == "E" and model.moe is not None:
            change = mixture(weights, f"{layer}.moe", model.moe, y, text)
        else:
            change = mlp(weights, f"{layer}.mlp", y)
        x_SD = x_SD + change
        if number in deep:
            x_SD = x_SD + deep[number]
    return x_SD


def _attention(
    weights: Weights, y: Tensor, name: str, model: HybridModel, documents: Tensor
) -> Tensor:
    heads, kv_heads = model.heads, model.num_kv_heads
    q = linear(weights, y, f"{name}.q").view(len(y), heads, -1)
    k, v = (linear(weights, y, f"{name}.{p}").view(len(y), kv_heads, -1) for p in "kv")
    if model.rope_theta is not None:
        angles = text_angles(len(y), frequencies(model.head_size, model.rope_theta))
        q, k = turned(q, angles), turned(k, angles)
    k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
    return linear(weights, attend(q, k, v, documents), f"{name}.o")


def _mamba(
    weights: Weights, y: Tensor, name: str, sizes: MambaSizes, eps: float, documents: Tensor
) -> Tensor:
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
    state = torch.zeros(sizes.heads, sizes.head_dim, sizes.state, dtype=y.dtype)
    outs = []
    for t in range(len(y)):
        if t > 0 and documents[t] != documents[t - 1]:
            state = torch.zeros_like(state)
        added = torch.einsum("h,hp,hk->hpk", step[t], x_SHP[t], b_SHK[t])
        state = (step[t] * a).exp()[:, None, None] * state + added
        outs.append(torch.einsum("hpk,hk->hp", state, c_SHK[t]))
    mixed = torch.stack(outs) + weights[f"{name}.D"][:, None] * x_SHP
    gated = mixed.flatten(1) * z * torch.sigmoid(z)
    grouped = gated.view(len(y), sizes.groups, -1)
    normed = grouped / (grouped.square().mean(-1, keepdim=True) + eps).sqrt()
    return linear(weights, normed.flatten(1) * weights[f"{name}.norm.weight"], f"{name}.out")


def _convolved(weights: Weights, x_SF: Tensor, name: str, documents: Tensor) -> Tensor:
    """Return silu of the weighted sum of each token and those before it in its document."""
    weight_FW, bias_F = weights[f"{name}.weight"], weights[f"{name}.bias"]
    width, outs = weight_FW.shape[1], []
    for t in range(len(x_SF)):
        total = bias_F
        for back in range(min(width, t + 1)):
            if documents[t - back] == documents[t]:
                total = total + weight_FW[:, width - 1 - back] * x_SF[t - back]
        outs.append(total * torch.sigmoid(total))
    return torch.stack(outs)
