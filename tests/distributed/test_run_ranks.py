"""The harness tells results, exceptions, hangs and deaths apart."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from tests.support.faulty_train import gone
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from mimo_launch.launcher.run_on_ranks import RankError, Ranks, packed, run_ranks


def add_ranks(offset: int) -> int:
    total = torch.tensor(dist.get_rank() + offset)
    dist.all_reduce(total)
    return int(total)


def place_in_new_mesh(groups_before: int) -> int:
    """Return this rank's place in the mesh of a sharded weight, as torch tells it."""
    for _ in range(groups_before):
        dist.new_group([0])
    group = dist.new_group([0])
    if dist.get_rank() > 0:
        return -1
    mesh = DeviceMesh.from_group(group, "cpu", mesh=torch.tensor([0]), mesh_dim_names=("dp",))
    local = DTensor.from_local(torch.ones(2), mesh, [Shard(0)], run_check=False)
    # A parameter detaches its tensor, an operation whose result torch caches by mesh.
    return torch.nn.Parameter(local).device_mesh.get_local_rank()


def greet() -> None:
    print("hello")
    os.write(1, b"from C\n")


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


def the_line_it_aborts_in() -> None:
    os.abort()


def abort_on_one() -> None:
    if dist.get_rank() == 1:
        the_line_it_aborts_in()
    time.sleep(60)


def leave_from_one() -> None:
    if dist.get_rank() == 1:
        os._exit(3)
    time.sleep(60)


def test_results_come_back_by_rank() -> None:
    assert run_ranks(add_ranks, 10, world_size=4) == [46, 46, 46, 46]


def test_tensors_of_results_come_back_as_they_were() -> None:
    trained = torch.ones(3, requires_grad=True)
    grid = torch.arange(12.0).view(3, 4)
    given = {
        "bf16": grid.bfloat16(), "whole": torch.tensor([-1, 2**62]), "flags": grid > 5,
        "one": torch.tensor(0.5, dtype=torch.float64), "none": torch.empty(0, 4),
        "part": grid[1:, 1:3], "turned": grid.t(), "spread": torch.ones(1).expand(4),
        "weight": torch.nn.Parameter(grid), "trained": trained, "sparse": grid.to_sparse(),
        "complex": (grid + 1j).conj(), "twice": [trained, trained],
    }  # fmt: skip
    with torch.sparse.check_sparse_tensor_invariants():  # Torch 2.11 warns unless told whether to.
        found = pickle.loads(packed(given))
    for name in given.keys() - {"twice", "sparse"}:
        now, before = found[name], given[name]
        assert type(now) is type(before)
        assert (now.dtype, now.shape) == (before.dtype, before.shape)
        assert now.requires_grad == before.requires_grad
        assert torch.equal(now, before)
    assert torch.equal(found["sparse"].to_dense(), grid)
    assert found["twice"][0] is found["twice"][1]
    found["part"].add_(1)
    assert torch.equal(found["part"], grid[1:, 1:3] + 1)


def test_ranks_never_use_meshes_of_the_process_that_forked_them() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert place_in_new_mesh(3) == 0
    finally:
        dist.destroy_process_group()
    assert run_ranks(place_in_new_mesh, 0, world_size=2) == [0, -1]


def test_ranks_collect_no_garbage_among_what_they_inherit() -> None:
    gc.unfreeze()  # What pytest's set-up has frozen, ranks would inherit as frozen.
    inherited = len(gc.get_objects()) // 2
    assert min(run_ranks(gc.get_freeze_count, world_size=2)) > inherited
    gc.freeze()


def test_tensors_come_back_after_their_rank_has_left() -> None:
    assert run_ranks(torch.ones, 3, world_size=2)[1].tolist() == [1, 1, 1]


def test_what_ranks_print_is_not_mixed_with_an_answer(capfd: pytest.CaptureFixture[str]) -> None:
    run_ranks(greet, world_size=2)
    out, err = capfd.readouterr()
    assert (out, err.count("hello"), err.count("from C")) == ("", 2, 2)


def test_the_first_rank_that_raises_is_the_error() -> None:
    started = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1 failed(.|\n)*rank 1 has had enough"):
        run_ranks(raise_on_one, world_size=3)
    assert time.monotonic() - started < 10


def test_a_rank_that_hangs_shows_where() -> None:
    with pytest.raises(RankError, match=r"hung for 2 s(.|\n)*the_line_it_hangs_in"):
        run_ranks(hang_on_one, world_size=2, timeout_s=2)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (die_on_one, "rank 1 was ended by SIGKILL without a message"),
        (abort_on_one, r"rank 1 was ended by SIGABRT(.|\n)*the_line_it_aborts_in"),
        (leave_from_one, "rank 1 exited with code 3 without a message"),
    ],
)
def test_a_rank_that_ends_is_named_with_how_it_ended(end: Callable[[], None], message: str) -> None:
    started = time.monotonic()
    with pytest.raises(RankError, match=message):
        run_ranks(end, world_size=2)
    assert time.monotonic() - started < 10


def process_of_rank(value: int) -> tuple[int, int]:
    return os.getpid(), add_ranks(value)


def test_ranks_that_stay_run_one_job_after_another() -> None:
    with Ranks(2) as ranks:
        first, second = (ranks.run(process_of_rank, value) for value in (10, 20))
    assert [pid for pid, _ in first] == [pid for pid, _ in second]
    assert [[total for _, total in found] for found in (first, second)] == [[21, 21], [41, 41]]


def test_ranks_are_started_anew_after_an_error() -> None:
    with Ranks(2) as ranks:
        before = ranks.run(process_of_rank, 0)
        with pytest.raises(RankError, match="rank 1 has had enough"):
            ranks.run(raise_on_one)
        after = ranks.run(process_of_rank, 0)
    assert not {pid for pid, _ in before} & {pid for pid, _ in after}
    assert [total for _, total in after] == [1, 1]


def work_for_ever() -> None:
    time.sleep(600)


@pytest.mark.parametrize("busy", [False, True])
def test_ranks_leave_with_their_parent(busy: bool) -> None:
    program = (
        "import os, threading, torch\n"
        "from tests.distributed.test_run_ranks import process_of_rank, work_for_ever\n"
        "from mimo_launch.launcher.run_on_ranks import Ranks\n"
        "ranks = Ranks(2)\n"
        "print(*(pid for pid, _ in ranks.run(process_of_rank, 0)), flush=True)\n"
        "threading.Timer(1, os.kill, (os.getpid(), 9)).start()\n"
    ) + ("ranks.run(work_for_ever)\n" if busy else "")
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 30
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < deadline, "ranks outlive their parent"
        time.sleep(0.05)


def test_ranks_on_gpus_are_not_forked_from_a_process_that_uses_them(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA does not survive a fork"):
        run_ranks(add_ranks, 0, world_size=1, device="cuda")


def test_a_rank_without_a_gpu_says_so() -> None:
    missing = torch.cuda.device_count() + 1
    with pytest.raises(RankError, match="has no GPU"):
        run_ranks(add_ranks, 0, world_size=missing, device="cuda")
