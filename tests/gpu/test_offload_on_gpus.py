"""Activations on the host: the same gradients, less memory, and copies beside the layers."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mimo_launch.comm.host_link import HostLink
from mimo_launch.layers.offload import offload_layers
from mimo_launch.layers.recompute import recomputed

pytestmark = pytest.mark.gpu

LAYERS, WIDTH, TOKENS = 12, 8192, 4096


class Layer(nn.Module):
    """Saves its input, which travels in 2.7 ms at 25 GB/s; a forward takes about 5 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = recomputed(self.compute, x)
        return out

    def compute(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        gate, up = self.up(self.norm(x)).chunk(2, dim=1)
        out: Tensor = x + self.down(torch.sin(gate) * up)
        return out


def one_step(moves: bool, forwards: int) -> tuple[list[Tensor], float, float]:
    """Return gradients, the GB that all forwards keep, and the seconds of a step."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        layers = nn.ModuleList(Layer() for _ in range(LAYERS)).to(torch.bfloat16)
        x = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)
    if moves:
        offload_layers(layers, HostLink(torch.device("cuda", torch.cuda.current_device())))
    seconds = kept = 0.0
    for _ in range(3):
        layers.zero_grad()
        torch.cuda.synchronize()
        before, began, losses = torch.cuda.memory_allocated(), time.perf_counter(), []
        for _ in range(forwards):
            out = x
            for layer in layers:
                out = layer(out)
            losses.append(out.mean(dtype=torch.float32))
        kept = (torch.cuda.memory_allocated() - before) / 1e9
        while losses:
            losses.pop(0).backward()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return [each.grad.cpu() for each in layers.parameters()], kept, seconds  # type: ignore[union-attr]


def compared(forwards: int) -> tuple[bool, list[float], list[float]]:
    """Return whether gradients are equal; the GB kept and the seconds, without and with it."""
    found = [one_step(moves, forwards) for moves in (False, True)]
    equal = all(torch.equal(one, other) for one, other in zip(*(g for g, *_ in found), strict=True))
    return equal, [kept for _, kept, _ in found], [seconds for *_, seconds in found]


@pytest.mark.parametrize("forwards", [1, 3])
def test_activations_travel_beside_the_layers(
    run_on: Callable[..., Any], device: str, forwards: int
) -> None:
    if device != "cuda":
        pytest.skip("memory and overlap are those of a GPU")
    ((equal, (here, there), (plain, moving)),) = run_on(1, compared, forwards)
    assert equal
    # One layer of all forwards together is still on its way when the last forward ends.
    assert there < here * (1 / LAYERS / forwards + 0.1)
    # Copies there and back, one after the other with the layers, would take a quarter more.
    assert moving < 1.1 * plain
