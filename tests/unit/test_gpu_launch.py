"""What the launcher and ranks know of GPUs and of the host, with no GPU at hand."""

import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from tests.support.specs import box, spec

from mimo_launch.comm.world import DeviceError, join_world, peak_memory, versions
from mimo_launch.launcher import forking, gpus, worker
from mimo_launch.launcher.failure_report import report_lines
from mimo_launch.launcher.rank_tasks import Training
from mimo_launch.launcher.shared_progress import HostCells
from mimo_launch.launcher.verdict import (
    FailureKind,
    Host,
    RankState,
    diagnose,
    from_json,
    judge,
    to_json,
)
from mimo_launch.launcher.watchdog import LocalWorker, WorkerWatch
from mimo_launch.launcher.worker_errors import OutOfGpuMemory, cause_of, nccl_watchdog_words
from mimo_launch.launcher.worker_logs import Recorder, recorded_ranks
from mimo_launch.launcher.worker_processes import Exit, StackFrame
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Cause, Phase

LATE = (
    "[rank1]:[E1121 12:00:00.1 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=10000) ran for 10013 milliseconds before timing out."
)
GONE = (
    "[PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with "
    "exception: NCCL error: remote process exited or there was a network error, NCCL version 2.28"
)
OWN = (
    "[Rank 0] Process group watchdog thread terminated with exception: CUDA error: an illegal "
    "memory access was encountered"
)
GPU_WAIT = (StackFrame("/site/torch/cuda/streams.py", 200, "synchronize"),)
ASLEEP = (StackFrame("/home/me/data.py", 3, "read"),)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two GPUs."""
    monkeypatch.setattr(gpus, "num_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)


@pytest.mark.usefixtures("found")
def test_workers_run_on_gpus_where_there_are_enough() -> None:
    assert gpus.device_of("auto", 2) == "cuda"
    assert gpus.device_of("cuda", 1) == "cuda"
    assert gpus.device_of("cpu", 8) == "cpu"
    with pytest.raises(gpus.NotEnoughGpus, match=r"8 workers .* it has 2; write --device cpu, or"):
        gpus.device_of("auto", 8)


def test_without_gpus_workers_run_on_processors_unless_gpus_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "num_gpus", lambda: 0)
    assert gpus.device_of("auto", 8) == "cpu"
    with pytest.raises(gpus.NotEnoughGpus, match="start on a host with GPUs"):
        gpus.device_of("cuda", 1)


@pytest.mark.usefixtures("found")
def test_a_setting_under_which_jobs_hang_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with pytest.raises(gpus.NotEnoughGpus, match="unset it"):
        gpus.device_of("cuda", 1)
    assert gpus.device_of("cpu", 1) == "cpu"


def test_a_rank_joins_no_job_that_would_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks also start without the launcher, under torchrun or from a program of the user's."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with pytest.raises(DeviceError, match="unset it"):
        join_world(torch.device("cuda"), timeout=timedelta(seconds=1))


def test_a_processor_has_no_version_of_nccl() -> None:
    assert versions(torch.device("cpu"))["nccl"] is None


def test_the_memory_of_a_process_is_told_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux counts KiB."""
    used = resource.struct_rusage((0.0, 0.0, 3, *[0] * 13))
    monkeypatch.setattr(resource, "getrusage", lambda who: used)
    assert peak_memory(torch.device("cpu")) == 3 * 1024


def test_gpus_are_counted_in_another_process() -> None:
    gpus.gpus_here.cache_clear()
    assert gpus.num_gpus() == (torch.cuda.device_count() if torch.cuda.is_available() else 0)


def test_a_driver_that_hangs_holds_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.gpus_here.cache_clear()
    monkeypatch.setattr(gpus, "_look", threading.Event().wait)
    monkeypatch.setattr(forking, "ANSWER_SECONDS", 2.0)
    hung = r"asking for GPUs did not end within 2 s; it is at wait .*nvidia-smi.*--device cpu"
    with pytest.raises(gpus.NotEnoughGpus, match=hung):
        gpus.device_of("auto", 2)
    assert gpus.device_of("cpu", 2) == "cpu"


COUNTED = """
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from mimo_launch.cli.launch.prepare import Start
from mimo_launch.launcher import gpus

gpus._look = lambda: gpus.Gpus(2 * ("torch._dynamo" in sys.modules))
plan = SimpleNamespace(spec=SimpleNamespace(modules={}))
start = partial(Start, plan=plan, task=None, file=None, runs=Path(), say=None, show=None)
assert start(device="cpu").on_host_of(2).device == "cpu"
assert "torch" not in sys.modules, "no GPU to look for"
assert start().on_host_of(2).device == "cuda"
gpus.refuse_initialised_cuda()
"""


def test_the_child_that_counts_gpus_inherits_what_workers_need() -> None:
    """Else torch is imported twice in turn, which doubles the time until workers start."""
    done = subprocess.run([sys.executable, "-c", COUNTED], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [*gpus._SETTINGS, *gpus._OTHER_NAMES.values(), "TORCH_FR_DUMP_TEMP_FILE"]:
        monkeypatch.delenv(name, raising=False)
    assert gpus.gpu_settings(tmp_path)["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "rank_")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    rest = gpus.gpu_settings(tmp_path)
    assert not {"NCCL_DEBUG", "PYTORCH_ALLOC_CONF"} & rest.keys()
    assert rest["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (LATE, Cause.TIMEOUT),
        (GONE, Cause.LOST),
        (OWN, Cause.OWN),
        ("Fatal Python error", Cause.NONE),
    ],
)
def test_the_last_words_of_a_watchdog_say_who_is_to_blame(
    tmp_path: Path, text: str, cause: Cause
) -> None:
    log = tmp_path / "stderr.log"
    log.write_text(f"{'warning' * 100_000}\n{text}\nAborted\n")
    found, words = nccl_watchdog_words(log)
    assert found is cause
    assert words in text
    assert bool(words) == (cause is not Cause.NONE)
    assert nccl_watchdog_words(tmp_path / "none") == (Cause.NONE, "")


NCCL_ERRORS = {
    "unhandled cuda error, ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 2 "
    "'out of memory'": Cause.OWN,
    "invalid usage, ncclInvalidUsage: Duplicate GPU detected": Cause.OWN,
    "remote process exited or there was a network error, ncclRemoteError": Cause.LOST,
    "unhandled system error, ncclSystemError: Connection closed": Cause.LOST,
    "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0], but store->get('0') "
    "got error: wait timeout after 10000ms, keys: /default_pg/0//cuda//0": Cause.TIMEOUT,
}


@pytest.mark.parametrize(("words", "cause"), NCCL_ERRORS.items())
def test_errors_of_nccl_are_told_apart(words: str, cause: Cause) -> None:
    assert cause_of(dist.DistBackendError(words)) is cause


def test_a_full_gpu_says_whose_it_is_and_what_needs_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its rank is that of the run, not its number on the host."""
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 70 << 30)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 75 << 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 79 << 30))
    full = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
    )
    made = spec({"vision": box(0), "language": box(1)})

    def fill(*_: Any) -> NoReturn:
        raise full

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(worker, "name_process", lambda name: None)
    monkeypatch.setattr(worker, "device_for", fill)
    with pytest.raises(OutOfGpuMemory) as raised:
        worker.run_worker(Plan.of(made), tmp_path, task=Training())
    error = raised.value
    assert str(error).splitlines() == [
        "the GPU of rank 1 (language) is full: 70.0 GiB in tensors, 75.0 GiB reserved of 79.0 GiB",
        "less is needed by smaller microbatches (schedule.microbatches), and under "
        "modules.language by `recompute: full`, `sharding: full`, or more ranks",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
    ]
    assert cause_of(error) is Cause.OWN


def test_recorders_are_asked_through_pipes_and_waited_for(tmp_path: Path) -> None:
    """As torch's thread does: it answers in a while, where its environment says."""
    recorder = Recorder(tmp_path, 0)
    stem = recorder.environment["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
    pipe = Path(f"{stem}1.pipe")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def asked() -> bool:
        with suppress(BlockingIOError):  # A writer is there, and has not written yet.
            return bool(os.read(reader, 100))
        return False

    def answer() -> None:
        while not asked():
            time.sleep(0.01)
        time.sleep(0.2)
        (recorder.folder / "rank_1").write_bytes(b"dump")

    # Rank 0 has not come far enough to have a pipe.
    thread = threading.Thread(target=answer)
    thread.start()
    writer = os.open(pipe, os.O_WRONLY)  # Else the thread would see the end of a file.
    recorder.ask([0, 1])
    begin = time.monotonic()
    recorder.wait()
    assert 0.1 < time.monotonic() - begin < 2
    assert recorded_ranks(recorder.folder) == [1]
    thread.join()
    os.close(reader)
    os.close(writer)
    recorder.close()
    assert not pipe.exists()
    assert recorder.folder.exists()


def test_a_recorder_that_was_not_asked_leaves_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 0)
    recorder.wait()
    recorder.close()
    assert not recorder.folder.exists()


class Ended:
    """Knows how the workers of a test ended."""

    def __init__(self, **exits: Exit) -> None:
        self.exits = {int(rank.removeprefix("rank")): end for rank, end in exits.items()}


def test_a_worker_that_the_watchdog_ended_blames_others(tmp_path: Path) -> None:
    (tmp_path / "stderr.log").write_text(LATE)
    ended = Ended(rank0=Exit(6, "SIGABRT", time.monotonic_ns()))
    worker = LocalWorker(rank=0, local_rank=0, pid=os.getpid(), folder=tmp_path)
    recorder = Recorder(tmp_path, 0)
    watch = WorkerWatch(HostCells(1), (worker,), ended, host=0, timeout=30, recorder=recorder)  # type: ignore[arg-type]
    assert watch.alarm()
    [seen] = watch.examine()
    recorder.close()
    assert (seen.cause, seen.blames_others, seen.died, seen.gpu) == (
        Cause.TIMEOUT,
        True,
        False,
        True,
    )
    assert "OpType=ALLREDUCE" in seen.message
    other = RankState(rank=1, phase=Phase.PROGRAM, step=1, process="S", frames=ASLEEP)
    assert judge([replace(seen, step=2), other]).rank == 1
    assert from_json(to_json([seen])) == [seen]


def test_a_host_that_waits_for_its_gpu_is_not_stuck(tmp_path: Path) -> None:
    """The one behind is; if all wait, the report says that hosts run ahead."""
    usual = RankState(rank=0, phase=Phase.REDUCING, step=7, process="S", frames=GPU_WAIT, gpu=True)
    late = replace(usual, rank=1, phase=Phase.PROGRAM, step=6, frames=ASLEEP)
    assert (judge([usual, late]).rank, judge([usual, late]).kind) == (1, FailureKind.STUCK)
    made = spec({"vision": box(0), "language": box(1)})
    host = Host(node=0, name="localhost", ranks=(0, 1))
    folder = tmp_path / "logs" / "attempt-0" / "flight-recorder"
    folder.mkdir(parents=True)
    for rank in range(2):
        (folder / f"rank_{rank}").write_bytes(b"dump")
    failure = diagnose(Plan.of(made), [usual, replace(usual, rank=1)], attempt=0, hosts=(host,))
    lines = report_lines(failure, tmp_path, command="again", checkpoint=None)
    assert lines[0].startswith("error: rank 0 is the furthest behind")
    text = "\n".join(lines)
    assert "every rank is waiting for its GPU, which waits for others" in text
    assert "(this is where its host is, which runs ahead of its GPU)" in text
    assert "rank 1: waiting for its GPU, step 7" in text
    assert f"{folder}/ (NCCL's flight recorder of ranks 0-1; read with torchfrtrace" in text
