"""Runs functions on several ranks of this machine and returns what each rank returned.

Decides: fork with a file rendezvous and one pipe per rank; the first failing rank is the error.
Relies on: a parent that has not started torch's threads (one thread per rank) and has not
initialised CUDA (see docs/adr/0016-fork-before-cuda.md).
Leaves: long training runs to `start_workers`, where torch elastic watches the workers.
"""

import faulthandler
import io
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor

from mimo_launch.comm.world import device_for, join_world
from mimo_launch.launcher.forking import import_for_workers
from mimo_launch.launcher.gpus import refuse_initialised_cuda
from mimo_launch.launcher.signals import die_with
from mimo_launch.launcher.worker_processes import signal_name
from mimo_launch.runtime.progress import STOP_SIGNALS

RankDevice = Literal["cpu", "cuda"]
# The default group times out this much after the job, so that the parent gives up first.
MARGIN_SECONDS = 5
# A rank whose pipe is closed has this long to end, so that its exit code is known.
EXIT_SECONDS = 5


class RankError(RuntimeError):
    """A rank failed; the message names it and includes its traceback."""


@dataclass(frozen=True, slots=True)
class RankCall:
    """One function to call on every rank, in a default group that meets at `store`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    store: Path
    timeout_s: float


def run_ranks(
    function: Callable[..., Any],
    *args: Any,
    world_size: int,
    timeout_s: float = 60,
    device: RankDevice = "cpu",
) -> list[Any]:
    """Call `function(*args)` on every rank of a new world and return the results by rank.

    On `cuda` the current device of each rank is a separate GPU, and NCCL carries tensors. Fork
    passes on the function and its arguments; only results must pickle.

    Raises: RankError with the first rank that raised, died or hung, and its traceback; the others
    are killed.
    """
    with Ranks(world_size, device=device) as ranks:
        return ranks.run(function, *args, timeout_s=timeout_s)


class Ranks:
    """Ranks that serve several jobs, each in a new default process group.

    Starting processes and CUDA takes seconds, a job on running ranks a fraction of a second. After
    an error all ranks are killed; the next job starts new ones.
    """

    def __init__(self, world_size: int, *, device: RankDevice = "cpu") -> None:
        self.world_size, self.device = world_size, device
        self._folder = tempfile.TemporaryDirectory(prefix="mimo-launch-")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._jobs = 0

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 60) -> list[Any]:
        """Call `function(*args)` on every rank and return the results by rank.

        New ranks inherit their first job by fork; later jobs must pickle. Raises: RankError.
        """
        self._jobs += 1
        store = Path(self._folder.name) / f"store-{self._jobs}"
        job = RankCall(function, args, store, timeout_s)
        try:
            if not self._processes:
                self._start(job)
            else:
                message = pickle.dumps(job)
                for pipe in self._pipes:
                    pipe.send_bytes(message)
            return self._collect(timeout_s)
        except BaseException:
            self._kill()
            raise

    def close(self) -> None:
        """End all ranks."""
        self._kill()
        self._folder.cleanup()

    def _start(self, job: RankCall) -> None:
        import_for_workers()
        if self.device == "cuda":
            refuse_initialised_cuda()
        context = multiprocessing.get_context("fork")
        # Python ignores what a signal's handler raises amid a fork.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            for rank in range(self.world_size):
                mine, theirs = context.Pipe()
                process = context.Process(
                    target=_rank_main,
                    args=(rank, self.world_size, self.device, theirs, os.getpid(), job),
                    daemon=True,
                )
                process.start()
                theirs.close()
                self._pipes.append(mine)
                self._processes.append(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _collect(self, timeout_s: float) -> list[Any]:
        """Wait for all ranks and return their results; raise for the first rank that fails."""
        results: dict[int, Any] = {}
        open_pipes = dict(zip(self._pipes, range(len(self._pipes)), strict=True))
        deadline = time.monotonic() + timeout_s
        while open_pipes:
            left = max(0.0, deadline - time.monotonic())
            ready = cast("list[Connection]", wait(list(open_pipes), timeout=left))
            if not ready:
                waiting = sorted(open_pipes.values())
                stacks = [f"rank {r}:\n{self._stack(r)}" for r in waiting]
                raise RankError(f"ranks {waiting} hung for {timeout_s:.0f} s\n" + "\n".join(stacks))
            for pipe in ready:
                rank = open_pipes.pop(pipe)
                try:
                    ok, value = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionResetError):
                    raise RankError(f"rank {rank} {self._end(rank)}") from None
                if not ok:
                    raise RankError(f"rank {rank} failed:\n{value}")
                results[rank] = value
        return [results[rank] for rank in range(len(self._pipes))]

    def _end(self, rank: int) -> str:
        """Say how a rank that closed its pipe has ended, and where, if a fault left a stack."""
        process = self._processes[rank]
        process.join(EXIT_SECONDS)
        code = process.exitcode
        if code is None:
            return f"closed its pipe and runs on\n{self._stack(rank)}"
        how = f"exited with code {code}" if code >= 0 else f"was ended by {signal_name(-code)}"
        return f"{how} without a message\n{self._stack(rank)}"

    def _stack(self, rank: int) -> str:
        path = _stack_file(Path(self._folder.name), rank)
        return (path.read_text() if path.exists() else "") or "(no stack)"

    def _kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


class _Packer(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        """Return how to make a tensor again; leave all else, also gradients, to pickle."""
        if type(value) is not Tensor or value.requires_grad or value.device.type != "cpu":
            return NotImplemented
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            return NotImplemented
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _unpacked, (bytearray(raw), value.dtype, tuple(value.shape))


def _unpacked(raw: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    # Torch makes no tensor of an empty buffer.
    return (
        torch.frombuffer(raw, dtype=dtype).view(shape) if raw else torch.empty(shape, dtype=dtype)
    )


def packed(value: object) -> bytes:
    """Pickle a value with all bytes of its tensors; `pickle.loads` makes it again.

    Pickle alone writes each tensor as a file of its own, which takes ten times as long for small
    ones. The pickle of torch's processes sends handles, which die with this process.
    """
    file = io.BytesIO()
    _Packer(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _stack_file(folder: Path, rank: int) -> Path:
    return folder / f"stack-{rank}"


def _rank_main(
    rank: int,
    world_size: int,
    device: RankDevice,
    pipe: Connection,
    parent: int,
    job: RankCall,
) -> NoReturn:
    """Run jobs as one rank until `parent` kills it or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in STOP_SIGNALS:
        if callable(signal.getsignal(number)):  # The parent's, which only cleans up after it.
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    die_with(parent)
    os.dup2(2, 1)  # Only the command's answer goes to stdout.
    # In a forked child, the first parallel call of torch replaces the thread pool. Do it here: if
    # the backward's threads, one per GPU, do it concurrently, they abort with "Invalid thread
    # pool".
    torch.set_num_threads(1)
    # Ranks connect when they first exchange data: most pairs never do, and connecting all of
    # them takes a fifth of the time of `verify`.
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    with _stack_file(job.store.parent, rank).open("w") as stack:
        faulthandler.enable(stack)
        while True:
            # A little before the parent gives up, so that it can read the stack.
            faulthandler.dump_traceback_later(max(0.1, job.timeout_s - 0.5), file=stack)
            # Use a new thread: torch caches results of DTensor operations per thread, and treats
            # meshes over equal ranks as equal. Otherwise results of this job would refer to the
            # meshes and groups of an earlier one, or of the process that was forked.
            with ThreadPoolExecutor(1) as thread:
                result = thread.submit(_run_job, rank, world_size, device, job).result()
            faulthandler.cancel_dump_traceback_later()
            pipe.send_bytes(packed(result))
            job = pickle.loads(pipe.recv_bytes())


def _run_job(rank: int, world_size: int, device: RankDevice, job: RankCall) -> tuple[bool, Any]:
    """Return whether a job succeeded, and its result or its traceback."""
    try:
        join_world(
            device_for(device, rank),
            timeout=timedelta(seconds=job.timeout_s + MARGIN_SECONDS),
            store=dist.FileStore(str(job.store), world_size),  # type: ignore[attr-defined]
            rank=rank,
            world_size=world_size,
        )
        result = job.function(*job.args)
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        return False, traceback.format_exc()
    return True, result
