"""What NCCL's watchdog and flight recorder really write, on which reports of failures rely."""

import multiprocessing
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mimo_launch.comm.world import device_for, join_world
from mimo_launch.launcher.gpus import gpu_settings, num_gpus
from mimo_launch.launcher.worker_errors import nccl_watchdog_words
from mimo_launch.launcher.worker_logs import Recorder, recorded_ranks
from mimo_launch.runtime.progress import Cause

pytestmark = pytest.mark.gpu

TIMEOUT_SECONDS = 8
ABORT_SECONDS = 60


def late_peer(rank: int, folder: Path, settings: dict[str, str], port: int) -> None:
    """Sum once together, then again without rank 1; the timeout of the group ends rank 0."""
    os.environ.update(settings)
    log = os.open(folder / f"stderr-{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, sys.stderr.fileno())
    os.dup2(log, 2)
    join_world(
        device_for("cuda", rank),
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
        # The watchdog asks the store: one as in a run.
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=2,
    )
    numbers = torch.ones(4, device="cuda")
    dist.all_reduce(numbers)
    assert numbers.tolist() == [2] * 4
    (folder / f"ready-{rank}").touch()
    if rank == 0:
        dist.all_reduce(numbers)
        numbers.tolist()
    time.sleep(ABORT_SECONDS)


def test_a_late_peer_ends_a_rank_with_words_that_we_know(tmp_path: Path) -> None:
    """And both ranks write their recorders before that, when they are asked."""
    if num_gpus() < 2:
        pytest.skip("needs 2 GPUs")
    recorder = Recorder(tmp_path, 0)
    settings = gpu_settings(recorder.folder) | recorder.environment
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=late_peer, args=(rank, tmp_path, settings, port), daemon=True)
        for rank in range(2)
    ]
    try:
        for process in ranks:
            process.start()
        deadline = time.monotonic() + 60
        while not all((tmp_path / f"ready-{rank}").exists() for rank in range(2)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        deadline = time.monotonic() + 20
        while recorded_ranks(recorder.folder) != [0, 1]:  # The thread that answers may start late.
            assert time.monotonic() < deadline
            recorder.ask([0, 1])
            recorder.wait()
        ranks[0].join(ABORT_SECONDS)
        assert ranks[0].exitcode == -6, (tmp_path / "stderr-0").read_text()[-4000:]
        cause, words = nccl_watchdog_words(tmp_path / "stderr-0")
        assert cause is Cause.TIMEOUT
        assert "OpType=ALLREDUCE" in words
    finally:
        for process in ranks:
            process.kill()
            process.join()
        recorder.close()
