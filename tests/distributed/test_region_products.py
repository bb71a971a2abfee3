"""Products beside the exchange of a region's tokens are those of all tokens on one rank."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.running_ranks import run_on_running_ranks
from torch import Tensor

from mimo_launch.comm.peer_copies import PeerCopies
from mimo_launch.comm.process_groups import Group
from mimo_launch.layers.recompute import remake
from mimo_launch.layers.region_products import gathered_product, scattered_product

WIDTH, FEATURES = 6, 7  # Of a rank.


def values(seed: int, *shape: int) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.requires_grad_()


class Sums:
    """Adds gradients of weights, as the last of several microbatches does."""

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def add(self, grad_NF: Tensor, x_ND: Tensor) -> None:
        """Keep the gradient, and give none to autograd."""
        self.total = grad_NF.t() @ x_ND


def region(
    how: str, frozen: tuple[str, ...], tokens: int, copies: PeerCopies | None = None
) -> dict[str, Tensor]:
    """Return the outputs and gradients of a region, x -> tanh -> back, on this rank.

    Each rank has so many `tokens` outside of it. With `copies`, it is on a GPU.
    """
    size, rank = dist.get_world_size(), dist.get_rank()
    tp = Group(tuple(range(size)), rank, dist.group.WORLD, copies=copies)
    device = "cpu" if copies is None else torch.device("cuda", torch.cuda.current_device())
    drawn = {
        "x": values(rank, tokens, WIDTH),
        "into": values(100 + rank, FEATURES, WIDTH),
        "bias": values(200 + rank, FEATURES),
        "back": values(300 + rank, WIDTH, FEATURES),
    }
    leaves = {
        name: each.detach().to(device).requires_grad_(name not in frozen)
        for name, each in drawn.items()
    }
    sums = {name: Sums() for name in ("into", "back")} if how == "summed" else {}
    x_nD = leaves["x"]
    # What is kept is not what is multiplied: only what is made again has its scale.
    make = remake(lambda x: 3 * x, x_nD) if how == "made again" else None
    inside = gathered_product(
        3 * x_nD, leaves["into"], leaves["bias"], sums.get("into"), tp, make
    ).tanh()
    out = scattered_product(inside, leaves["back"], sums.get("back"), tp)
    out.backward(values(400 + rank, *out.shape).detach().to(device))
    found = {name: each.grad for name, each in leaves.items() if each.grad is not None}
    for name, each in sums.items():
        if each.total is not None:
            found[name] = each.total
    return {name: each.cpu() for name, each in {"out": out.detach(), **found}.items()}


def on_one_rank(size: int, frozen: tuple[str, ...], tokens: int) -> list[dict[str, Tensor]]:
    """Return the same for each rank, from whole matrices."""
    x, into, bias, back = (
        [values(first + rank, *shape) for rank in range(size)]
        for first, shape in (
            (0, (tokens, WIDTH)),
            (100, (FEATURES, WIDTH)),
            (200, (FEATURES,)),
            (300, (WIDTH, FEATURES)),
        )
    )
    inside = 3 * torch.cat(x) @ torch.cat(into).t() + torch.cat(bias)
    out = inside.tanh() @ torch.cat(back, dim=1).t()
    out.backward(torch.cat([values(400 + r, tokens, WIDTH).detach() for r in range(size)]))
    wholes: dict[str, list[Any]] = {"x": x, "into": into, "bias": bias, "back": back}
    return [
        {
            "out": out.detach().chunk(size)[rank],
            **{n: parts[rank].grad for n, parts in wholes.items() if n not in frozen},
        }
        for rank in range(size)
    ]


CASES: list[tuple[str, tuple[str, ...], int]] = [
    ("kept", (), 5),
    ("made again", (), 5),
    ("summed", (), 5),
    ("kept", ("x",), 5),
    ("made again", ("into", "bias"), 5),
    ("summed", ("into", "back"), 5),
    # As those of an encoder in a microbatch without images.
    ("kept", (), 0),
    ("summed", (), 0),
]


def judge(found: list[dict[str, Tensor]], frozen: tuple[str, ...], tokens: int) -> None:
    """Compare the results of all ranks with those of one."""
    for mine, theirs in zip(found, on_one_rank(len(found), frozen, tokens), strict=True):
        assert mine.keys() == theirs.keys()
        for name, each in mine.items():
            torch.testing.assert_close(each, theirs[name], rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("how", "frozen", "tokens"), CASES)
def test_a_region_computes_what_one_rank_does(
    size: int, how: str, frozen: tuple[str, ...], tokens: int
) -> None:
    judge(run_on_running_ranks(region, how, frozen, tokens, world_size=size), frozen, tokens)
