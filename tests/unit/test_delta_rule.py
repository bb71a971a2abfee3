"""The chunked delta rule is the recurrence that it stands for, gradients included."""

import pytest
import torch
from torch import Tensor

from mimo_launch.layers.delta_rule import DeltaInputs, delta_rule

HEADS, VALUES, GROUPS, KEYS = 4, 3, 2, 5


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor, documents: Tensor | None
) -> Tensor:
    """Token by token, from the definition."""
    q, k = (
        (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(HEADS // GROUPS, 2)
        for t in (q, k)
    )
    state, outs = v.new_zeros(len(v), HEADS, KEYS, VALUES), []
    for t in range(v.shape[1]):
        if documents is not None and t > 0:
            state = state * (documents[:, t] == documents[:, t - 1])[:, None, None, None]
        state = state * decay[:, t, :, None, None].exp()
        held = torch.einsum("bhkp,bhk->bhp", state, k[:, t])
        written = strength[:, t, :, None] * (v[:, t] - held)
        state = state + torch.einsum("bhk,bhp->bhkp", k[:, t], written)
        outs.append(torch.einsum("bhkp,bhk->bhp", state, q[:, t]) / KEYS**0.5)
    return torch.stack(outs, dim=1) if outs else v


def arguments(length: int, *, documents: bool) -> tuple[list[Tensor], Tensor | None]:
    random = torch.Generator().manual_seed(length)

    def drawn(*shape: int) -> Tensor:
        return torch.randn((2, length, *shape), generator=random, dtype=torch.float64)

    numbers = None
    if documents:
        numbers = (torch.rand((2, length), generator=random) < 0.25).cumsum(dim=1)
    values = [
        drawn(GROUPS, KEYS),
        drawn(GROUPS, KEYS),
        drawn(HEADS, VALUES),
        -torch.nn.functional.softplus(drawn(HEADS)),
        drawn(HEADS).sigmoid(),
    ]
    return [value.requires_grad_() for value in values], numbers


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(("length", "chunk"), [(13, 1), (13, 4), (16, 8), (13, 64), (1, 4), (0, 4)])
def test_chunks_change_nothing(length: int, chunk: int, documents: bool) -> None:
    values, numbers = arguments(length, documents=documents)
    got = delta_rule(DeltaInputs(*values), chunk=chunk, documents_BS=numbers)
    want = recurrence(*values, numbers)
    assert torch.allclose(got, want, rtol=0, atol=1e-12)
    if not length:
        return
    weight = torch.randn(got.shape, dtype=torch.float64)
    grads = (torch.autograd.grad((y * weight).sum(), values) for y in (got, want))
    for mine, theirs in zip(*grads, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)


def test_states_are_kept_in_fp32() -> None:
    """Inputs in bf16 are rounded once, and so is the result; nothing between is."""
    values, _ = arguments(64, documents=False)
    q, k, v, decay, strength = (value.detach() for value in values)
    low = [t.bfloat16() for t in (q, k, v)]
    got = delta_rule(DeltaInputs(*low, decay.float(), strength.float()), chunk=16)
    want = recurrence(*(t.double() for t in low), decay, strength, None)
    assert got.dtype == torch.bfloat16
    assert torch.allclose(got.double(), want, rtol=2**-8, atol=1e-6)
