"""The harness tells results, exceptions, hangs and deaths apart."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from mimo_launch.launcher.ranks import RankError, run_ranks


def add_ranks(offset: int) -> int:
    total = torch.tensor(dist.get_rank() + offset)
    dist.all_reduce(total)
    return int(total)


def raise_on_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("rank 1 has had enough")
    time.sleep(60)


def hang_on_one() -> None:
    if dist.get_rank() == 1:
        the_line_it_hangs_in()


def the_line_it_hangs_in() -> None:
    time.sleep(60)


def die_on_one() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def test_results_come_back_by_rank() -> None:
    assert run_ranks(add_ranks, 10, world_size=4) == [46, 46, 46, 46]


def test_tensors_come_back_after_their_rank_has_left() -> None:
    assert run_ranks(torch.ones, 3, world_size=2)[1].tolist() == [1, 1, 1]


def test_the_first_rank_that_raises_is_the_error() -> None:
    started = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1 failed(.|\n)*rank 1 has had enough"):
        run_ranks(raise_on_one, world_size=3)
    assert time.monotonic() - started < 10


def test_a_rank_that_hangs_shows_where() -> None:
    with pytest.raises(RankError, match=r"hung for 2 s(.|\n)*the_line_it_hangs_in"):
        run_ranks(hang_on_one, world_size=2, timeout_s=2)


def test_a_rank_that_is_killed_is_named() -> None:
    started = time.monotonic()
    with pytest.raises(RankError, match="rank 1 died without a word"):
        run_ranks(die_on_one, world_size=2)
    assert time.monotonic() - started < 10
