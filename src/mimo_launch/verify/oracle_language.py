"""Language models of the oracle: one sequence at a time, whole.

Decides: what the layers of a decoder and of a hybrid pattern compute, from their definition.
Relies on: `oracle_layers`, and `oracle_recurrent` for Mamba and DeltaNet.
Leaves: embedding, the last norm and the loss of language to `oracle`.

Legend: S tokens, D width, H heads of K numbers, r rows of width E, N frames.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.hybrid import HybridModel
from mimo_launch.spec.language_models import CausalModel, DecoderBlocks
from mimo_launch.spec.spec import DecoderModel, LanguageModel
from mimo_launch.verify.oracle_blocks import GATES, RecordText, mixture, mlp
from mimo_launch.verify.oracle_layers import (
    Weights,
    attend,
    attention_factor,
    linear,
    query_growth,
    rms_norm,
    turned,
)
from mimo_launch.verify.oracle_recurrent import deltanet, mamba


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
    """Return the stream after the last layer, [S, D]; see `decoder_block`.

    `deep` is added after layers, by their number.
    """
    for i in range(model.layers):
        layer = f"{name}.layers.{i}"
        x_SD = decoder_block(weights, x_SD, model, text, angles, i, layer, local_angles)
        if deep and i in deep:
            x_SD = x_SD + deep[i]
    return x_SD


def decoder_block(
    weights: Weights,
    x_SD: Tensor,
    model: DecoderBlocks,
    text: RecordText,
    angles: Tensor,
    number: int,
    layer: str,
    local_angles: Tensor | None = None,
) -> Tensor:
    """Return the stream after a block like layer `number`, with weights under the name `layer`.

    `angles` are for `turned`; `local_angles` replace them in layers with windows, if given.
    """
    kind, more = kind_of(model), model if isinstance(model, DecoderModel) else None
    norm = partial(rms_norm, weights, eps=model.norm_eps, offset=bool(more and more.norm_offset))
    gate = GATES[more.activation if more else "silu"]
    window = more.sliding_window if more else None
    is_local = window is not None and number not in window.full
    turns_here = local_angles is not None and is_local
    change = _attention(
        weights,
        norm(x_SD, f"{layer}.attention_norm"),
        f"{layer}.attention",
        model,
        text,
        local_angles if turns_here else angles,
        factor=1.0 if turns_here else attention_factor(model.rope_scaling),
        head_norm=norm if model.qk_norm else None,
        window=window.size if window is not None and is_local else None,
        growth=query_growth(more.query_scaling, text.documents) if more else None,
        size=more.query_pre_attn_scalar if more else None,
        cap=more.attention_softcap if more else None,
        sinks_H=weights[f"{layer}.attention.sinks.weight"]
        if more and more.attention_sinks
        else None,
    )
    if more and more.post_norms:
        change = norm(change, f"{layer}.post_attention_norm")
    x_SD = x_SD + change
    y = norm(x_SD, f"{layer}.mlp_norm")
    if kind.moe is not None and kind.has_experts(number):
        change = mixture(weights, f"{layer}.mlp", kind.moe, y, text, gate)
    else:
        change = mlp(weights, f"{layer}.mlp", y, gate)
    if more and more.post_norms:
        change = norm(change, f"{layer}.post_mlp_norm")
    return x_SD + change


def latent_heads(
    weights: Weights, y: Tensor, name: str, model: DecoderModel, angles: Tensor, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of multi-head latent attention, [S, H, K or V].

    Source: arXiv:2405.04434, section 2.1, equations 9 to 19; key heads share the rotating part.
    """
    if model.mla is None:
        raise ValueError("a decoder without latent attention")
    mla, heads = model.mla, model.heads
    of_q = y
    if mla.q_rank is not None:
        of_q = linear(weights, y, f"{name}.q_down")
        of_q = rms_norm(weights, of_q, f"{name}.q_norm", mla.norm_eps)
    q_SHK = linear(weights, of_q, f"{name}.q_up").view(len(y), heads, -1)
    down = linear(weights, y, f"{name}.kv_down")
    of_kv = rms_norm(weights, down[:, : mla.kv_rank], f"{name}.kv_norm", mla.norm_eps)
    up = linear(weights, of_kv, f"{name}.kv_up").view(len(y), heads, -1)
    plain = q_SHK.shape[2] - mla.rope_head_dim

    def with_turned(straight: Tensor, turning: Tensor) -> Tensor:
        if mla.interleaved:
            turning = _pairs_in_halves(turning, turning.shape[-1])
        return torch.cat([straight, turned(turning, angles, factor)], dim=-1)

    shared = down[:, None, mla.kv_rank :].repeat(1, heads, 1)
    q_SHK = with_turned(q_SHK[..., :plain], q_SHK[..., plain:])
    return q_SHK, with_turned(up[..., :plain], shared), up[..., plain:]


def _pairs_in_halves(x: Tensor, size: int) -> Tensor:
    """Return x with its first `size` / 2 pairs unzipped: first numbers, then second numbers."""
    order = [*range(0, size, 2), *range(1, size, 2), *range(size, x.shape[-1])]
    return x[..., order]


def hybrid_layers(
    weights: Weights,
    x_SD: Tensor,
    model: HybridModel,
    text: RecordText,
    angles: Tensor | None,
    deep: Mapping[int, Tensor],
) -> Tensor:
    """Return the stream after the last layer, [S, D]; `deep` is added after layers."""
    norm = partial(rms_norm, weights, eps=model.norm_eps, offset=model.norm_offset)
    gate = GATES["silu" if model.activation == "squared_relu" else model.activation]
    for number, letter in enumerate(model.pattern):
        layer = f"language.layers.{number}"
        y = norm(x_SD, f"{layer}.norm")
        if letter == "M" and model.mamba is not None:
            change = mamba(
                weights, y, f"{layer}.mamba", model.mamba, model.norm_eps, text.documents
            )
        elif letter == "G" and model.deltanet is not None:
            change = deltanet(
                weights, y, f"{layer}.deltanet", model.deltanet, model.norm_eps, text.documents
            )
        elif letter == "*":
            head_norm = norm if model.qk_norm else None
            name = f"{layer}.attention"
            change = _attention(weights, y, name, model, text, angles, head_norm=head_norm)
        elif letter == "E" and model.moe is not None:
            change = mixture(weights, f"{layer}.moe", model.moe, y, text, gate)
        else:
            change = mlp(weights, f"{layer}.mlp", y, gate)
        x_SD = x_SD + change
        if number in deep:
            x_SD = x_SD + deep[number]
    return x_SD


def hybrid_block(
    weights: Weights,
    x_SD: Tensor,
    model: HybridModel,
    text: RecordText,
    angles: Tensor | None,
    name: str,
) -> Tensor:
    """Return the stream after attention and experts or an MLP, a block for further tokens."""
    norm = partial(rms_norm, weights, eps=model.norm_eps, offset=model.norm_offset)
    gate = GATES["silu" if model.activation == "squared_relu" else model.activation]
    head_norm, y = norm if model.qk_norm else None, norm(x_SD, f"{name}.attention_norm")
    attention = f"{name}.attention"
    x_SD = x_SD + _attention(weights, y, attention, model, text, angles, head_norm=head_norm)
    y = norm(x_SD, f"{name}.mlp_norm")
    if "E" in model.pattern and model.moe is not None:
        return x_SD + mixture(weights, f"{name}.mlp", model.moe, y, text, gate)
    return x_SD + mlp(weights, f"{name}.mlp", y, gate)


def _attention(
    weights: Weights,
    y: Tensor,
    name: str,
    model: CausalModel,
    text: RecordText,
    angles: Tensor | None,
    *,
    head_norm: Callable[[Tensor, str], Tensor] | None,
    factor: float = 1.0,
    growth: Tensor | None = None,
    window: int | None = None,
    size: float | None = None,
    cap: float | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Return causal attention; a query head's features may be a query followed by a gate.

    Queries are multiplied by `growth` [S].
    """
    heads, kv_heads = model.heads, model.num_kv_heads
    gates: Sequence[Tensor] = ()
    if isinstance(model, DecoderModel) and model.mla and angles is not None:
        q, k, v = latent_heads(weights, y, f"{name}.latent", model, angles, factor)
    else:
        q, *gates = torch.split(
            linear(weights, y, f"{name}.q").view(len(y), heads, -1), model.head_size, dim=-1
        )
        k, v = (linear(weights, y, f"{name}.{p}").view(len(y), kv_heads, -1) for p in "kv")
        if head_norm is not None:
            q, k = head_norm(q, f"{name}.q_norm"), head_norm(k, f"{name}.k_norm")
        if angles is not None:
            if isinstance(model, LanguageModel) and model.rotary_interleaved:
                q, k = (_pairs_in_halves(each, 2 * angles.shape[-1]) for each in (q, k))
            q, k = turned(q, angles, factor), turned(k, angles, factor)
    if growth is not None:
        q = torch.einsum("shk,s->shk", q, growth)
    k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
    attended = attend(
        *(q, k, v, text.documents),
        images=text.images,
        window=window,
        size=size,
        cap=cap,
        sinks_H=sinks_H,
    )
    for gate in gates:
        attended = attended / (1 + (-gate.flatten(1)).exp())
    return linear(weights, attended, f"{name}.o")
