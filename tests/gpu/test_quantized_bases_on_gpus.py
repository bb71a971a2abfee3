"""Bases in 4 and 8 bits on a GPU: the bytes, the values and the products of a host."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mimo_launch.diag.installed import is_installed
from mimo_launch.layers.packed import pack, packed_linear, unpack
from mimo_launch.spec.quantized_base import QuantizedBase

pytestmark = pytest.mark.gpu


def compared(device: str, kind: str) -> dict[str, float]:
    """Return how far a GPU is from the host: bytes that differ, values, and products."""
    base = QuantizedBase.model_validate({"kind": kind})
    dice = torch.Generator().manual_seed(1)
    values, x = torch.randn(96, 300, generator=dice), torch.randn(7, 300, generator=dice)
    there, here = pack(values.to(device), base), pack(values, base)
    kept = unpack(there, base, 300, torch.float32)
    known = unpack(there.cpu(), base, 300, torch.float32)
    x_on = x.to(device).requires_grad_()
    out = packed_linear(x_on, there, None, base)
    (grad,) = torch.autograd.grad(out.sum(), x_on)
    return {
        "bytes": float((there.cpu() != here).float().mean()),
        "values": float((kept.cpu() - known).abs().max()),
        "product": float((out.cpu() - x @ known.T).abs().max()),
        "gradient": float((grad.cpu() - known.sum(0)).abs().max()),
    }


@pytest.mark.parametrize("kind", ["nf4", "int8", "fp8"])
def test_a_gpu_keeps_and_multiplies_as_a_host(
    kind: str, run_on: Callable[..., list[Any]], device: str
) -> None:
    if kind == "nf4" and not is_installed("bitsandbytes"):
        pytest.skip("NF4 is of bitsandbytes")
    (found,) = run_on(1, compared, device, kind)
    # Numbers between two levels may go to either.
    assert found["bytes"] < 1e-3
    assert found["values"] < 1e-6
    assert found["product"] < 1e-2
    assert found["gradient"] < 1e-2
