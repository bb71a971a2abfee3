"""Language models of the oracle: one sequence at a time, whole.

Decides: what the layers of a decoder and of a hybrid pattern compute, from their definition; which
token each depth of multi-token prediction reads.
Relies on: `oracle_layers`, and `oracle_recurrent` for Mamba and DeltaNet.
Leaves: embedding, the last norm and the loss of language to `oracle`.

Legend: S tokens, D width, H heads of K numbers, r rows of width E, N frames.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.hybrid import HybridModel
from mimo_launch.spec.language_models import CausalModel, DecoderBlocks
from mimo_launch.spec.layers import SlidingWindow
from mimo_launch.spec.spec import DecoderModel, LanguageModel
from mimo_launch.verify.oracle_blocks import ACTIVATIONS, RecordText, mixture, mlp
from mimo_launch.verify.oracle_dropout import Weights
from mimo_launch.verify.oracle_layers import (
    attend,
    attention_factor,
    hidden_from,
    layer_norm,
    linear,
    pairs_in_halves,
    query_growth,
    rms_norm,
    softmax,
    softmax_beside,
    turned,
)
from mimo_launch.verify.oracle_recurrent import deltanet, mamba, short_conv

# Numbers and the name of a norm's weight to normed numbers.
Norm = Callable[[Tensor, str], Tensor]


def decoder_streams(
    weights: Weights,
    x_SD: Tensor,
    model: DecoderBlocks,
    text: RecordText,
    deep: Mapping[int, Tensor] | None = None,
    *,
    name: str = LANGUAGE,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the stream after each layer, [S, D], and the same with what is added there.

    `deep` is added after layers, by number.
    """
    held: dict[bool, tuple[Tensor, Tensor]] = {}
    for i in range(model.layers):
        x_SD = decoder_block(weights, x_SD, model, text, i, f"{name}.layers.{i}", held)
        bare_SD = x_SD
        if deep and i in deep:
            x_SD = x_SD + deep[i]
        yield bare_SD, x_SD


def decoder_block(
    weights: Weights,
    x_SD: Tensor,
    model: DecoderBlocks,
    text: RecordText,
    number: int,
    layer: str,
    held: dict[bool, tuple[Tensor, Tensor]] | None = None,
) -> Tensor:
    """Return the stream after a block like layer `number`, with weights under the name `layer`.

    `held` has the last keys and values of layers without windows and with them; a block that is not
    of the model's layers has its own.
    """
    kind, more = kind_of(model), model if isinstance(model, DecoderModel) else None
    norm = norm_of(weights, model)
    activation = more.activation if more else "silu"
    has_norms = more is None or more.pre_norms
    factor = (more and more.residual_scale) or 1.0
    y = norm(x_SD, f"{layer}.attention_norm") if has_norms else x_SD
    change = _attention(weights, y, f"{layer}.attention", model, text, number, held)
    if more and more.post_norms:
        change = norm(change, f"{layer}.post_attention_norm")
    read_SD, norm_name = x_SD, f"{layer}.attention_norm"
    x_SD = x_SD + factor * weights.added(change, f"{layer}.drop_attention")
    if more is None or not more.parallel:
        read_SD, norm_name = x_SD, f"{layer}.mlp_norm"
    y = norm(read_SD, norm_name) if has_norms else read_SD
    if kind.moe is not None and kind.has_experts(number):
        change = mixture(weights, f"{layer}.mlp", kind.moe, y, text, activation, read_SD, norm)
    else:
        change = mlp(weights, f"{layer}.mlp", y, activation)
    if more and more.post_norms:
        change = norm(change, f"{layer}.post_mlp_norm")
    x_SD = x_SD + factor * weights.added(change, f"{layer}.drop_mlp")
    if more and more.per_layer_embeddings and text.vectors is not None:
        gate = ACTIVATIONS[activation](linear(weights, x_SD, f"{layer}.per_layer.narrow"))
        change = linear(weights, gate * text.vectors[:, number], f"{layer}.per_layer.widen")
        x_SD = x_SD + norm(change, f"{layer}.per_layer.norm")
    scaled = more is not None and more.layer_scalar is not None
    return x_SD * weights[f"{layer}.layer_scalar.weight"] if scaled else x_SD


def per_layer_vectors(
    weights: Weights, x_SD: Tensor, tokens: Tensor, model: LanguageModel
) -> Tensor | None:
    """Return the per-layer embeddings of tokens, [S, layers, P], if the model has any.

    `x_SD` enters the first layer; `tokens` are those of rows replaced. Source: `transformers` 5.24,
    models/gemma4, `get_per_layer_inputs` and `project_per_layer_inputs`.
    """
    if not isinstance(model, DecoderModel) or (own := model.per_layer_embeddings) is None:
        return None
    name, shape = f"{LANGUAGE}.per_layer", (len(tokens), model.layers, own.width)
    vectors = weights[f"{name}.table.weight"][tokens] * own.width**0.5
    vectors = torch.where((tokens == own.padding)[:, None], vectors.detach(), vectors)
    mapped = linear(weights, x_SD, f"{name}.project").view(shape) / model.hidden**0.5
    normed = norm_of(weights, model)(mapped, f"{name}.norm")
    return (normed + vectors.view(shape)) / 2**0.5


def norm_of(weights: Weights, model: CausalModel) -> Norm:
    """Return the norm of a model's layers; it takes numbers and the name of its weight."""
    if isinstance(model, DecoderModel) and model.norm != "rms":
        return partial(layer_norm, weights, eps=model.norm_eps)
    return _rms_of(weights, model)


def _rms_of(weights: Weights, model: CausalModel) -> Norm:
    """Return the norm of queries and keys, and of most models' layers."""
    offset = isinstance(model, LanguageModel) and model.norm_offset
    return partial(rms_norm, weights, eps=model.norm_eps, offset=offset)


def _normed(
    norm: Norm, x_SHK: Tensor, name: str, model: DecoderBlocks | HybridModel, number: int | None
) -> Tensor:
    """Return queries or keys after their norm, if any, of each head or of all together."""
    if model.qk_norm:
        if isinstance(model, DecoderModel) and model.wide_qk_norm:
            return norm(x_SHK.flatten(1), name).view(x_SHK.shape)
        return norm(x_SHK, name)
    if isinstance(model, DecoderModel) and model.l2_qk_norm and not _is_still(model, number):
        return _over_its_root(x_SHK, model.norm_eps)
    return x_SHK


def _over_its_root(x_SHK: Tensor, eps: float) -> Tensor:
    """Return heads divided by their root mean square."""
    return x_SHK / (x_SHK.square().mean(dim=-1, keepdim=True) + eps).sqrt()


def _placed(
    norm: Norm,
    x_SHK: Tensor,
    name: str,
    model: DecoderBlocks | HybridModel,
    number: int | None,
    turn: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return queries or keys after their norm, then rotated, or the other way round.

    They are clipped after a norm of all heads together, before one of each head.
    """
    wide = isinstance(model, DecoderModel) and model.wide_qk_norm
    late = isinstance(model, DecoderModel) and model.rotated_qk_norm and not wide
    if wide:
        return turn(_clipped(_normed(norm, x_SHK, name, model, number), model))
    x_SHK = _clipped(x_SHK, model)
    if late:
        return _normed(norm, turn(x_SHK), name, model, number)
    return turn(_normed(norm, x_SHK, name, model, number))


def _clipped(x_SHK: Tensor, model: DecoderBlocks | HybridModel) -> Tensor:
    """Return x with numbers beyond the limit of a decoder, if it has one, at the limit."""
    most = model.clip_qkv if isinstance(model, DecoderModel) else None
    if most is None:
        return x_SHK
    return torch.where(x_SHK.abs() > most, most * x_SHK.sign(), x_SHK)


def _rotated(
    x_SHK: Tensor, model: DecoderBlocks | HybridModel, angles: Tensor | None, factor: float
) -> Tensor:
    """Return queries or keys rotated by their positions, if there are any."""
    if angles is not None and isinstance(model, LanguageModel) and model.rotary_interleaved:
        size = 2 * angles.shape[-1]
        places = pairs_in_halves(torch.arange(x_SHK.shape[-1]), size).argsort()
        x_SHK = turned(pairs_in_halves(x_SHK, size), angles, factor)[..., places]
    elif angles is not None:
        x_SHK = turned(x_SHK, angles, factor)
    return x_SHK


def _is_still(model: DecoderModel, number: int | None) -> bool:
    """Return whether a layer has no rotary positions."""
    return model.nope is not None and number in model.nope.layers


def _has_no_keys(model: DecoderBlocks | HybridModel, number: int | None) -> bool:
    """Return whether a layer is one of the last ones, which attend to keys of earlier layers."""
    if not isinstance(model, DecoderModel) or model.shared_keys is None or number is None:
        return False
    return number >= model.layers - model.shared_keys.layers


def _normed_values(v_SHK: Tensor, model: DecoderBlocks | HybridModel) -> Tensor:
    """Return values after their norm, if any."""
    normed = isinstance(model, DecoderModel) and model.value_norm
    return _over_its_root(v_SHK, model.norm_eps) if normed else v_SHK


def _heads_of(
    model: DecoderBlocks | HybridModel, number: int | None
) -> tuple[int, int, Literal["k", "v"]]:
    """Return the size of a layer's heads, their number for keys, and the map of values."""
    found = model.head_size, model.num_kv_heads
    if not isinstance(model, DecoderModel):
        return *found, "v"
    if (window := _window_of(model, number)) is None:
        return *found, "k" if model.values_from_keys else "v"
    return window.head_dim or found[0], window.kv_heads or found[1], "v"


def _sees_images(model: DecoderBlocks | HybridModel, number: int | None) -> bool:
    """Return whether the tokens of an image see each other in a layer, if they do in any."""
    if not isinstance(model, DecoderModel) or model.bidirectional_images != "in_windows":
        return True
    return _window_of(model, number) is not None


def _window_of(model: DecoderModel, number: int | None) -> SlidingWindow | None:
    """Return the window of a layer, if it has one."""
    window = model.sliding_window
    return None if window is None or number in window.full else window


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
            turning = pairs_in_halves(turning, turning.shape[-1])
        return torch.cat([straight, turned(turning, angles, factor)], dim=-1)

    shared = down[:, None, mla.kv_rank :].repeat(1, heads, 1)
    q_SHK = with_turned(q_SHK[..., :plain], q_SHK[..., plain:])
    return q_SHK, with_turned(up[..., :plain], shared), up[..., plain:]


def hybrid_streams(
    weights: Weights,
    x_SD: Tensor,
    model: HybridModel,
    text: RecordText,
    deep: Mapping[int, Tensor],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the stream after each layer, [S, D], and the same with what is added there.

    `deep` is added after layers.
    """
    norm, eps, documents = norm_of(weights, model), model.norm_eps, text.documents
    for number, letter in enumerate(model.pattern):
        layer = f"language.layers.{number}"
        y = norm(x_SD, f"{layer}.norm")
        if letter == "M" and model.mamba is not None:
            change = mamba(weights, y, f"{layer}.mamba", model.mamba, eps, documents)
        elif letter == "G" and model.deltanet is not None:
            change = deltanet(weights, y, f"{layer}.deltanet", model.deltanet, eps, documents)
        elif letter == "C":
            change = short_conv(weights, y, f"{layer}.short_conv", documents)
        elif letter == "*":
            change = _attention(weights, y, f"{layer}.attention", model, text)
        elif letter == "E" and model.moe is not None:
            change = mixture(
                weights, f"{layer}.moe", model.moe, y, text, model.activation, x_SD, norm
            )
        else:
            change = mlp(weights, f"{layer}.mlp", y, model.activation)
        bare_SD = x_SD = x_SD + weights.added(change, f"{layer}.drop")
        if number in deep:
            x_SD = x_SD + deep[number]
        yield bare_SD, x_SD


def hybrid_block(
    weights: Weights, x_SD: Tensor, model: HybridModel, text: RecordText, name: str
) -> Tensor:
    """Return the stream after attention and experts or an MLP, a block for further tokens."""
    norm = norm_of(weights, model)
    y = norm(x_SD, f"{name}.attention_norm")
    change = _attention(weights, y, f"{name}.attention", model, text)
    x_SD = x_SD + weights.added(change, f"{name}.drop_attention")
    y = norm(x_SD, f"{name}.mlp_norm")
    if "E" in model.pattern and model.moe is not None:
        change = mixture(weights, f"{name}.mlp", model.moe, y, text, model.activation, x_SD, norm)
    else:
        change = mlp(weights, f"{name}.mlp", y, model.activation)
    return x_SD + weights.added(change, f"{name}.drop_mlp")


def _attention(
    weights: Weights,
    y: Tensor,
    name: str,
    model: DecoderBlocks | HybridModel,
    text: RecordText,
    number: int | None = None,
    held: dict[bool, tuple[Tensor, Tensor]] | None = None,
) -> Tensor:
    """Return causal attention, in a decoder of layer `number`, for `held` see `decoder_block`.

    A query head's features may be a query followed by a gate. In multi-head latent attention, see
    `latent_heads`.
    """
    heads, norm = model.heads, _rms_of(weights, model)
    head_size, kv_heads, of_value = _heads_of(model, number)
    angles, factor, growth = _turns(model, number, text)
    window, chunked, size, cap, sinks = None, False, None, None, None
    if isinstance(model, DecoderModel):
        size, cap = model.query_pre_attn_scalar, model.attention_softcap
        sinks = weights[f"{name}.sinks.weight"] if model.attention_sinks else None
        if (sliding := _window_of(model, number)) is not None:
            window, chunked = sliding.size, sliding.chunked
    gates: Sequence[Tensor] = ()
    if isinstance(model, DecoderModel) and model.mla and angles is not None:
        q, k, v = latent_heads(weights, y, f"{name}.latent", model, angles, factor)
    else:
        q, *gates = torch.split(
            linear(weights, y, f"{name}.q").view(len(y), heads, -1), head_size, dim=-1
        )
        turn = partial(_rotated, model=model, angles=angles, factor=factor)
        q = _placed(norm, q, f"{name}.q_norm", model, number, turn)
        if held is not None and _has_no_keys(model, number):
            k, v = held[window is not None]
        else:
            k, v = (
                linear(weights, y, f"{name}.{p}").view(len(y), kv_heads, -1)
                for p in ("k", of_value)
            )
            k = _placed(norm, k, f"{name}.k_norm", model, number, turn)
            v = _normed_values(_clipped(v, model), model)
        if held is not None:
            held[window is not None] = k, v
    if growth is not None:
        q = torch.einsum("shk,s->shk", q, growth)
    k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
    scale = (size or q.shape[-1]) ** -0.5
    images = text.images if _sees_images(model, number) else None
    hidden = hidden_from(text.documents, images, window, chunked=chunked, prompts=text.prompts)
    softmaxed = softmax if sinks is None else partial(softmax_beside, sinks_H=sinks)
    attended = attend(
        q * scale, k, v, hidden, cap=cap, weigh=lambda s: weights.attended(softmaxed(s), name)
    )
    for gate in gates:
        attended = attended / (1 + (-gate.flatten(1)).exp())
    return linear(weights, attended, f"{name}.o")


def _turns(
    model: DecoderBlocks | HybridModel, number: int | None, text: RecordText
) -> tuple[Tensor | None, float, Tensor | None]:
    """Return the angles of a layer's rotations, their factor, and any factors of queries, [S]."""
    angles, factor, growth = text.angles, 1.0, None
    if isinstance(model, DecoderBlocks):
        factor = attention_factor(model.rope_scaling)
    if isinstance(model, DecoderModel):
        growth = query_growth(model.query_scaling, text.documents)
        if (sliding := _window_of(model, number)) is not None:
            factor = factor if sliding.rope_theta is None else 1.0
            angles = angles if text.local_angles is None else text.local_angles
        if model.nope is not None and _is_still(model, number) and angles is not None:
            angles, factor = torch.zeros_like(angles), 1.0
            own = model.nope.query_scaling or model.query_scaling
            growth = query_growth(own, text.documents)
    return angles, factor, growth


def streams_ahead(
    weights: Weights,
    model: LanguageModel,
    x_SD: Tensor,
    tokens: Tensor,
    text: RecordText,
    embedded: Callable[[Tensor], Tensor],
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the normed stream of each depth of multi-token prediction.

    Source: arXiv:2412.19437, equations 21 to 24. With the stream come the place of the token that
    each token reads, [S], and whether there is one: if not, any is read, and there is no loss here
    or later in the document. `x_SD` is the stream after the last norm of language.
    """
    norm = norm_of(weights, model)
    for depth in range(1, 1 + (model.mtp.depth if model.mtp else 0)):
        name, places = f"language.mtp.{depth - 1}", torch.arange(len(tokens))
        ahead = (places + depth).clamp(max=len(tokens) - 1)
        has = (places + depth < len(tokens)) & (text.documents == text.documents[ahead])
        at = torch.where(has, ahead, places)
        pair = norm(embedded(tokens[at]), f"{name}.token_norm"), norm(x_SD, f"{name}.hidden_norm")
        x_SD = linear(weights, torch.cat(pair, dim=1), f"{name}.project")
        seen = replace(text, counts=text.counts & text.counts[at] & has)
        if isinstance(model, DecoderModel):
            x_SD = decoder_block(weights, x_SD, model, seen, model.layers - 1, f"{name}.block")
        elif isinstance(model, HybridModel):
            x_SD = hybrid_block(weights, x_SD, model, seen, f"{name}.block")
        x_SD = norm(x_SD, f"{name}.norm")
        yield x_SD, at, has
