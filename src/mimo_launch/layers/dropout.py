"""Dropout by counter: the same numbers are dropped on every layout, and when a layer runs again.

A number of 64 bits follows from (seed, step, record, place of a token, layer, feature), and a value
is dropped if the number is small. No rank keeps a state or a mask.

Decides: the function, and that the values that stay are divided by the share of those that stay.
Relies on: SplitMix64 (G. Steele, D. Lea, C. Flood, Fast Splittable Pseudorandom Number Generators,
2014): output n of a state. Products of int64 wrap alike on every device.
Leaves: numbering tokens to `models.token_numbers`.

Legend: N tokens, F features; B sequences of S queries and M keys, h heads of this rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 53


@dataclass(frozen=True, slots=True)
class Draws:
    """The states of the tokens of one forward, from which each layer draws.

    `tokens` [N] are those of this cp rank, `own` [n] those of this tp rank between regions, and
    `every` [B, S] those of whole sequences, in order.
    """

    tokens: Tensor
    own: Tensor
    every: Tensor | None = None


def _signed(number: int) -> int:
    """Return a number modulo 2^64 as int64 stores it."""
    return (number + 2**63) % 2**64 - 2**63


def _mixed(x: Tensor) -> Tensor:
    """Return the output of SplitMix64 for a state, in its place; shifts fill with zeros."""
    x = x.bitwise_xor_((x >> 30).bitwise_and_(2**34 - 1)).mul_(_signed(_FIRST))
    x = x.bitwise_xor_((x >> 27).bitwise_and_(2**37 - 1)).mul_(_signed(_SECOND))
    return x.bitwise_xor_((x >> 31).bitwise_and_(2**33 - 1))


def drawn(state: Tensor, counter: Tensor) -> Tensor:
    """Return number `counter`, from 0, that follows from a state; both int64."""
    return _mixed(state + _steps(counter))


def _steps(counter: Tensor) -> Tensor:
    """Return how far a state is after `counter` numbers."""
    return (counter + 1) * _signed(_GOLDEN)


def states(seed: int, step: int, *counters: Tensor) -> Tensor:
    """Return the states of tokens with these numbers in a step."""
    state = torch.zeros((), dtype=torch.int64, device=counters[0].device)
    for each in (seed, step):
        state = drawn(state, torch.full_like(state, each))
    for counter in counters:
        state = drawn(state, counter)
    return state


def _kept(x: Tensor, numbers: Tensor, least: int, scale: float) -> Tensor:
    """Return x times `scale` where the upper bits of a number are at least `least`, else 0."""
    stays = (numbers >> (64 - _BITS)).bitwise_and_(2**_BITS - 1) >= least
    return torch.where(stays, x * scale, 0.0)


def _kept_features(
    x_NF: Tensor, state_N: Tensor, steps_F: Tensor, least: int, scale: float
) -> Tensor:
    """Return `x_NF` without the features that its tokens drop; `steps_F` are those of features."""
    return _kept(x_NF, _mixed(state_N[:, None] + steps_F), least, scale)


class _Dropped(torch.autograd.Function):
    """Draws again in the backward, so that no mask is kept."""

    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, state_N: Tensor, keep: Callable[..., Tensor]) -> Tensor:
        ctx.save_for_backward(state_N)
        ctx.keep = keep
        return keep(x_NF, state_N)

    @staticmethod
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.keep(grad_NF, *ctx.saved_tensors), None, None


class Dropout(nn.Module):
    """Drops numbers at a rate; `fused` calls a function in one pass over memory."""

    def __init__(self, rate: float, fused: Callable[..., Tensor]) -> None:
        super().__init__()
        self._key, self._fused = 0, fused
        self._least, self._scale = round(rate * 2**_BITS), 1 / (1 - rate)

    def name(self, path: str) -> None:
        """Draw other numbers than layers with another path in the spec's modules."""
        digest = blake2b(path.encode(), digest_size=8).digest()
        self._key = _signed((int.from_bytes(digest, "little") + 1) * _GOLDEN)

    def forward(self, x_NF: Tensor, tokens_N: Tensor, first: int = 0) -> Tensor:
        """Return the features, of which the first has number `first` among those of all ranks."""
        # Made outside of the pass: a compiler would compute it with numbers that do not wrap.
        features = torch.arange(first, first + x_NF.shape[1], device=x_NF.device)
        rest = _steps(features), self._least, self._scale

        def keep(x: Tensor, state: Tensor) -> Tensor:
            return self._fused(_kept_features, x, state, *rest)

        out: Tensor = _Dropped.apply(x_NF, self._state(tokens_N), keep)  # type: ignore[no-untyped-call]
        return out

    def scores(
        self, weights_BhSM: Tensor, queries_BS: Tensor, keys_BM: Tensor, first: int
    ) -> Tensor:
        """Return the weights of attention, of which the first head has number `first`."""
        heads = torch.arange(first, first + weights_BhSM.shape[1], device=queries_BS.device)
        state_BhS = drawn(self._state(queries_BS)[:, None], heads[:, None])
        numbers = _mixed(state_BhS[..., None] + keys_BM[:, None, None])
        return _kept(weights_BhSM, numbers, self._least, self._scale)

    def _state(self, tokens: Tensor) -> Tensor:
        return _mixed(tokens + self._key)


def dropout(rate: float, fused: Callable[..., Any]) -> Dropout | None:
    """Return a layer that drops at a rate, or None at rate 0."""
    return Dropout(rate, fused) if rate else None


def name_dropouts(module: str, network: nn.Module) -> None:
    """Let each dropout of a stage draw its own numbers, by a path that no layout changes."""
    for path, layer in network.named_modules():
        if isinstance(layer, Dropout):
            layer.name(f"{module}.{path}")
