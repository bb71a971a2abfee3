"""Regions whose tokens the copy engines exchange, again and again in the same memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.distributed.test_region_products import CASES, WIDTH, judge, region
from tests.support.gpu_ranks import DEVICE, SIZES
from torch import Tensor

from mimo_launch.comm.peer_copies import open_copies

pytestmark = pytest.mark.gpu

# Of a rank; the memory for exchanges holds all but the last of these, which NCCL exchanges.
TOKENS = (5, 301, 1, 64, 302)


def regions(how: str, frozen: tuple[str, ...]) -> list[dict[str, Tensor]]:
    """Return a region of each number of tokens in turn, all of them twice."""
    device = torch.device("cuda", torch.cuda.current_device())
    most = 301 * dist.get_world_size() * WIDTH * 8
    copies = open_copies(dist.group.WORLD, device, most)
    assert copies is not None
    return [region(how, frozen, tokens, copies) for tokens in 2 * TOKENS]


@pytest.mark.parametrize("size", [size for size in SIZES if size > 1])
@pytest.mark.parametrize(("how", "frozen"), [(h, f) for h, f, tokens in CASES if tokens])
def test_a_region_computes_what_one_rank_does(
    size: int, how: str, frozen: tuple[str, ...], run_on: Callable[..., list[Any]]
) -> None:
    if DEVICE != "cuda":
        pytest.skip("processors have no copy engines")
    by_rank = run_on(size, regions, how, frozen)
    for number, tokens in enumerate(2 * TOKENS):
        judge([each[number] for each in by_rank], frozen, tokens)
