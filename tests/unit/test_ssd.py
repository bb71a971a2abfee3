"""The chunked state space model is the recurrence that it stands for, gradients included."""

import pytest
import torch
from torch import Tensor

from mimo_launch.layers.ssd import SsdInputs, causal_conv, ssd

HEADS, CHANNELS, GROUPS, STATE = 6, 3, 2, 5


def recurrence(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    documents: Tensor | None,
    initial: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Token by token, head by head, from the definition."""
    batch, length, heads, channels = x.shape
    per_group = heads // b.shape[2]
    state = x.new_zeros(batch, heads, channels, b.shape[3]) if initial is None else initial
    outs = []
    for t in range(length):
        if documents is not None and t > 0:
            state = state * (documents[:, t] == documents[:, t - 1])[:, None, None, None]
        b_t, c_t = (m[:, t].repeat_interleave(per_group, dim=1) for m in (b, c))
        decay = torch.exp(dt[:, t] * a)[..., None, None]
        added = (dt[:, t, :, None] * x[:, t])[..., None] * b_t[:, :, None, :]
        state = decay * state + added
        outs.append((state * c_t[:, :, None, :]).sum(-1) + d[:, None] * x[:, t])
    return torch.stack(outs, dim=1) if outs else x, state


def arguments(length: int, *, documents: bool, initial: bool) -> list[Tensor | None]:
    random = torch.Generator().manual_seed(length)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    numbers = None
    if documents:
        starts = torch.rand((2, length), generator=random) < 0.25
        numbers = starts.cumsum(dim=1)
    values: list[Tensor | None] = [
        drawn(2, length, HEADS, CHANNELS),
        torch.nn.functional.softplus(drawn(2, length, HEADS)),
        -drawn(HEADS).exp(),
        drawn(2, length, GROUPS, STATE),
        drawn(2, length, GROUPS, STATE),
        drawn(HEADS),
        numbers,
        drawn(2, HEADS, CHANNELS, STATE) if initial else None,
    ]
    return [v.requires_grad_() if v is not None and v.is_floating_point() else v for v in values]


@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(("length", "chunk"), [(16, 4), (13, 4), (3, 8), (9, 1), (0, 4)])
def test_chunks_are_the_recurrence(length: int, chunk: int, documents: bool, initial: bool) -> None:
    """Outputs, the last state, and the gradients of both by everything, to 1e-12."""
    given = arguments(length, documents=documents, initial=initial)
    x, dt, a, b, c, d, numbers, start = given
    found = ssd(SsdInputs(x, dt, a, b, c, d), chunk=chunk, documents_BS=numbers, initial_BHPK=start)
    wanted = recurrence(x, dt, a, b, c, d, numbers, start)
    leaves = [v for v in given if v is not None and v.requires_grad]
    random = torch.Generator().manual_seed(1)
    weights = [torch.randn(w.shape, generator=random, dtype=torch.float64) for w in wanted]
    grads = [
        torch.autograd.grad(
            sum((w * out).sum() for w, out in zip(weights, outs, strict=True)),
            leaves,
            allow_unused=True,
        )
        for outs in (found, wanted)
    ]
    for mine, theirs in [*zip(found, wanted, strict=True), *zip(*grads, strict=True)]:
        if theirs is None:
            assert mine is None or not mine.any()
            continue
        assert mine.shape == theirs.shape
        off, size = (t.detach().norm().item() for t in (mine - theirs, theirs))
        assert off <= 1e-12 * max(1.0, size)


def test_a_sequence_may_be_computed_in_two_parts() -> None:
    """The last state of the first part is the initial one of the second."""
    x, dt, a, b, c, d, _, _ = arguments(12, documents=False, initial=False)
    whole, end = ssd(SsdInputs(x, dt, a, b, c, d), chunk=4)
    first, state = ssd(SsdInputs(x[:, :7], dt[:, :7], a, b[:, :7], c[:, :7], d), chunk=4)
    rest = SsdInputs(x[:, 7:], dt[:, 7:], a, b[:, 7:], c[:, 7:], d)
    second, last = ssd(rest, chunk=4, initial_BHPK=state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last, end, rtol=1e-12, atol=1e-12)


def test_inputs_in_bf16_are_computed_in_more() -> None:
    """Of long sequences a sum in bf16 would lose most."""
    x, dt, a, b, c, d, _, _ = arguments(64, documents=False, initial=False)
    low = [t.detach().to(torch.bfloat16) for t in (x, dt, a, b, c, d)]
    found, _ = ssd(SsdInputs(*low), chunk=16)
    wanted, _ = ssd(SsdInputs(*(t.double() for t in low)), chunk=16)
    assert found.dtype == torch.bfloat16
    assert float((found.double() - wanted).norm() / wanted.norm()) < 2**-8


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("length", [0, 2, 9])
def test_the_convolution_is_that_of_torch_document_by_document(length: int, width: int) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, length, 5, generator=random, dtype=torch.float64)
    weight = torch.randn(5, width, generator=random, dtype=torch.float64)
    bias = torch.randn(5, generator=random, dtype=torch.float64)
    numbers = (torch.rand((2, length), generator=random) < 0.3).cumsum(dim=1)
    found = causal_conv(x, weight, bias, documents_BS=numbers)
    for row in range(2):
        for number in numbers[row].unique():
            part = x[row, numbers[row] == number].T.unsqueeze(0)
            padded = torch.nn.functional.pad(part, (width - 1, 0))
            out = torch.nn.functional.conv1d(padded, weight.unsqueeze(1), bias, groups=5)
            wanted = torch.nn.functional.silu(out[0].T)
            torch.testing.assert_close(found[row, numbers[row] == number], wanted)
    assert found.shape == x.shape
