"""What layers save goes to the host: which tensors, when, and what stays on the device."""

from typing import Any
from weakref import WeakSet, ref

import pytest
import torch
from tests.support.specs import box, spec
from torch import Tensor, nn

from mimo_launch.comm.host_link import HostLink
from mimo_launch.layers.offload import LEAST, offload_layers
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.recompute import recomputed, remade, remake
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.build import build_network

WIDTH, TOKENS = 16, 64
SIZE = WIDTH * TOKENS * 8


class NotedLink(HostLink):
    """Notes what it copies, and what of it still exists."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.sent: list[int] = []
        self.here: WeakSet[Any] = WeakSet()
        self.fetched: list[Any] = []
        self.most = 0

    def send(self, here: Tensor) -> Tensor:
        self.sent.append(here.numel())
        self.here.add(here.untyped_storage())
        return super().send(here)

    def fetch(self, there: Tensor) -> Tensor:
        here = super().fetch(there)
        self.here.add(here.untyped_storage())
        self.fetched.append(ref(here))
        self.most = max(self.most, self.bytes_here)
        return here

    @property
    def bytes_here(self) -> int:
        return sum(each.nbytes() for each in self.here)


class Layer(nn.Module):
    """Saves its input, two views of one product, and the angles."""

    def __init__(self, way: str = "") -> None:
        super().__init__()
        self.way = way
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        if self.way == "full":
            return recomputed(self.compute, x, angles)
        return self.compute(x, angles)

    def compute(self, x: Tensor, angles: Tensor) -> Tensor:
        normed = self.norm(x)
        with remade(normed, remake(self.norm, x) if self.way == "norms" else None):
            both = self.up(normed)
        one, two = both.split(WIDTH, dim=1)
        return x + one * two.sin() * angles


def made(way: str = "", layers: int = 4) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Layer(way) for _ in range(layers))


def forward(layers: nn.ModuleList, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    x, angles = (torch.randn(TOKENS, WIDTH, dtype=torch.float64) for _ in range(2))
    for layer in layers:
        x = layer(x, angles)
    return x.square().sum()


def gradients(layers: nn.ModuleList) -> list[Tensor]:
    found = [each.grad for each in layers.parameters() if each.grad is not None]
    assert len(found) == len(list(layers.parameters()))
    return found


@pytest.mark.parametrize("way", ["", "norms", "full"])
def test_the_device_holds_what_two_layers_save_of_all_forwards_that_wait(way: str) -> None:
    plain, layers, link = made(way), made(way), NotedLink()
    offload_layers(dict(layers.named_children()), link)
    for seed in range(3):
        forward(plain, seed).backward()
    losses = [forward(layers, seed) for seed in range(3)]
    in_layer = {"": 5, "norms": 4, "full": 1}[way]
    # The angles of each forward stay, and a first input without gradient, if its norm is remade.
    stays = 6 if way == "norms" else 3
    assert link.bytes_here == (in_layer + stays) * SIZE
    assert len(link.sent) >= 3 * len(layers)
    for loss in losses:
        loss.backward()
    for want, got in zip(gradients(plain), gradients(layers), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert link.most == (2 * in_layer + stays) * SIZE
    del loss, losses
    assert not link.here


def test_weights_small_tensors_and_what_all_layers_share_stay() -> None:
    layers, link = made(layers=3), NotedLink()
    offload_layers(dict(layers.named_children()), link)
    forward(layers)
    assert min(link.sent) >= LEAST
    # Input, its norm, the product of which there are two views, a sine. The angles go with the
    # first layer, which cannot know that others need them.
    assert sorted(link.sent) == [SIZE] * (3 * 3 + 1) + [2 * SIZE] * 3


class Scaled(torch.autograd.Function):
    """Saves its weight as compiled passes do: another tensor of the same storage."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight.detach())
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, 2 * LEAST, dtype=torch.float64)[:, 0])

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        out: Tensor = Scaled.apply(x, self.weight)
        return out


def test_weights_stay_that_are_saved_as_another_tensor() -> None:
    """Full sharding frees them at the end of their layer, while copies may still run."""
    layers, link = nn.ModuleList([Scale()]), NotedLink()
    offload_layers(dict(layers.named_children()), link)
    forward(layers)
    assert link.sent == [SIZE]


def test_evaluations_copy_nothing() -> None:
    layers, link = made(), NotedLink()
    offload_layers(dict(layers.named_children()), link)
    with torch.no_grad():
        forward(layers)
    assert not link.sent


def test_memory_that_copies_write_into_outlives_a_dropped_graph() -> None:
    """Until the device has waited for them: a freed block would go to other tensors."""
    layers, link = made(), NotedLink()
    offload_layers(dict(layers.named_children()), link)
    x, angles = (torch.randn(TOKENS, WIDTH, dtype=torch.float64) for _ in range(2))
    for layer in layers[:-1]:
        x = layer(x, angles)
    loss = layers[-1](x, angles).sum()
    # This backward ends in the last layer, while what the layer before it saved comes back.
    torch.autograd.grad(loss, x)
    del loss, x
    assert link.fetched
    assert all(each() is not None for each in link.fetched)
    forward(layers)
    assert all(each() is None for each in link.fetched)


class Careless(nn.Module):
    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        kept = x * 2
        out = kept.sin()
        with torch.no_grad():
            kept.add_(1)
        return out


@pytest.mark.parametrize("others", [0, 2])
def test_a_tensor_changed_after_it_was_saved_is_refused(others: int) -> None:
    layers = nn.ModuleList([Layer(), Careless(), *made(layers=others)])
    offload_layers(dict(layers.named_children()), NotedLink())
    with pytest.raises(RuntimeError, match="that 1 keeps for its backward was changed in place"):
        forward(layers).backward()


def test_errors_name_the_module_and_the_layer() -> None:
    model = {"layers": 2, "mtp": {"depth": 1}}
    made = spec({"language": box(0, offload=["activations"], model=model)})
    (stage,) = build_layout(made)["language"].stages
    network: Any = build_network(made, stage, ParallelContext())
    ways = [each.forward for each in (*network.layers.values(), *network.mtp)]
    names = ["layer 0 of `language`", "layer 1 of `language`", "depth 0 of `language`"]
    assert [each.args[0] for each in ways] == names
