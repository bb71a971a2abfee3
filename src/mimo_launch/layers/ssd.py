"""The state space model of Mamba-2 over sequences, chunk by chunk, and its short convolution.

Decides: how a recurrence over tokens becomes matrix products, and where its state is reset.
Relies on: torch only; on GPUs `ssd_kernels` computes the same.
Leaves: projections, rank groups and norms to `mamba`.

A head has a state h [P, K]; token by token, h = exp(dt A) h + dt x B^T and y = h C + D x. Inside a
chunk that is a masked matrix product like attention; only h passes from chunk to chunk.
Source: T. Dao and A. Gu, Transformers are SSMs (arXiv:2405.21060), section 6.

Legend: B sequences of S tokens, H heads of P channels, G groups of R heads that share B and C, K
state size, F channels; c chunks of i or j tokens.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.layers.pointwise import widened


class SsdInputs(NamedTuple):
    """What the recurrence reads of each token, and of each head: `a` is negative, `dt` positive."""

    x_BSHP: Tensor
    dt_BSH: Tensor
    a_H: Tensor
    b_BSGK: Tensor
    c_BSGK: Tensor
    d_H: Tensor


def ssd(
    given: SsdInputs,
    *,
    chunk: int,
    documents_BS: Tensor | None = None,
    initial_BHPK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return y like x, and the state after the last token [B, H, P, K], in at least fp32.

    The first token of each document in `documents` starts from a zero state; the initial state
    belongs to the document of the first token. `chunk` does not change the result. S may be 0.
    """
    x_BSHP, dt_BSH, a_H, b_BSGK, c_BSGK, d_H = given
    shape, heads, groups = x_BSHP.shape, x_BSHP.shape[2], b_BSGK.shape[2]
    wide = widened(x_BSHP)
    x, b, c = (chunked(widened(t), chunk) for t in (x_BSHP, b_BSGK, c_BSGK))
    dt = chunked(dt_BSH.to(wide.dtype), chunk)
    numbers = None if documents_BS is None else chunked(documents_BS, chunk, repeat_last=True)
    x, dt = (t.reshape(*t.shape[:3], groups, heads // groups, *t.shape[4:]) for t in (x, dt))
    a = a_H.to(wide.dtype).view(groups, -1)
    # Logarithms of decays from the start of a chunk to after each token.
    decay_BciGR = (dt * a).cumsum(dim=2)
    inputs = x * dt.unsqueeze(-1)
    # Contributions to tokens from earlier tokens of their chunk, and from themselves; [B, c, i, j,
    # G, R] are decays from after token j to after token i.
    between = decay_BciGR.unsqueeze(3) - decay_BciGR.unsqueeze(2)
    size = decay_BciGR.shape[2]
    hidden = torch.ones(size, size, dtype=torch.bool, device=wide.device).triu(1)
    if numbers is not None:
        hidden = hidden | (numbers.unsqueeze(3) != numbers.unsqueeze(2))
    weight = between.masked_fill(hidden[..., None, None], float("-inf")).exp()
    scores = torch.einsum("zcign,zcjgn->zcijg", c, b).unsqueeze(-1) * weight
    within = torch.einsum("zcijgr,zcjgrp->zcigrp", scores, inputs)
    if initial_BHPK is None:
        state = wide.new_zeros((shape[0], heads, shape[3], b.shape[-1]))
    else:
        state = initial_BHPK.to(wide.dtype)
    state = state.reshape(-1, groups, heads // groups, *state.shape[2:])
    before, state = _states(inputs, decay_BciGR, b, numbers, state)
    reach = decay_BciGR.exp()
    if numbers is not None:
        reach = reach * (numbers == last_before(numbers)[..., None])[..., None, None]
    handed = torch.einsum("zcign,zcgrpn,zcigr->zcigrp", c, before, reach)
    y = (within + handed).flatten(1, 2)[:, : shape[1]].reshape(shape)
    y = y + d_H.to(wide.dtype).unsqueeze(-1) * wide
    return y.to(x_BSHP.dtype), state.flatten(1, 2)


def _states(
    inputs: Tensor, decay: Tensor, b: Tensor, numbers: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the state before each chunk, [B, c, G, R, P, K], and the state after the last."""
    to_end = (decay[:, :, -1:] - decay).exp()
    through = decay[:, :, -1].exp()
    if numbers is not None:
        to_end = to_end * (numbers == numbers[:, :, -1:])[..., None, None]
        through = through * (numbers[:, :, -1] == last_before(numbers))[..., None, None]
    added = torch.einsum("zcjgn,zcjgr,zcjgrp->zcgrpn", b, to_end, inputs)
    before = []
    for index in range(decay.shape[1]):
        before.append(state)
        state = through[:, index, ..., None, None] * state + added[:, index]
    return torch.stack(before, dim=1) if before else added, state


def last_before(numbers_Bci: Tensor) -> Tensor:
    """Return the document of the token before each chunk, [B, c]; the first chunk gets its own."""
    first = numbers_Bci[:, :1, 0]
    return torch.cat([first, numbers_Bci[:, :-1, -1]], dim=1)


def chunked(t_BS: Tensor, chunk: int, *, repeat_last: bool = False) -> Tensor:
    """Return tokens in chunks, [B, c, chunk, ...], padded with 0 or with the last token.

    A zero token does not change the state.
    """
    missing = -t_BS.shape[1] % chunk
    if missing:
        last = t_BS[:, -1:] if repeat_last else torch.zeros_like(t_BS[:, -1:])
        t_BS = torch.cat([t_BS, last.expand(-1, missing, *t_BS.shape[2:])], dim=1)
    batch, length = t_BS.shape[:2]
    return t_BS.reshape(batch, length // chunk, chunk, *t_BS.shape[2:])


def causal_conv(
    x_BSF: Tensor,
    weight_FW: Tensor,
    bias_F: Tensor | None,
    documents_BS: Tensor | None = None,
    activates: bool = True,
) -> Tensor:
    """Return silu of each channel's convolution over the last W tokens, the current one included.

    Unless it `activates`, the convolution itself. Tokens of other documents, and places before the
    first token, count as 0. [B, S, F] -> the same, in at least fp32 inside.
    """
    x, weight = widened(x_BSF), widened(weight_FW)
    length, width = x.shape[1], weight.shape[1]
    total = x * weight[:, -1]
    if bias_F is not None:
        total = widened(bias_F) + total
    # All products have the whole length, so a compiler fuses them, and their gradients.
    padded = F.pad(x, (0, 0, width - 1, 0))
    for back in range(1, width):
        first = width - 1 - back
        earlier = padded[:, first : first + length] * weight[:, -1 - back]
        if documents_BS is not None:
            before = F.pad(documents_BS, (back, 0), value=-1)[:, :length]
            earlier = earlier * (documents_BS == before).unsqueeze(-1)
        total = total + earlier
    return (F.silu(total) if activates else total).to(x_BSF.dtype)
