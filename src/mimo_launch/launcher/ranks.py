"""Runs one function on several ranks of this machine and returns what each returned.

Decides: fork with a file rendezvous and one pipe per rank; the first failing rank is the error.
Relies on: a parent that has not started threads of torch's own (one thread per rank).
Leaves: long training runs to `local`, which has torch elastic watch the workers.
"""

import faulthandler
import io
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class RankError(RuntimeError):
    """A rank failed; the message names it and holds its traceback."""


def run_ranks(
    function: Callable[..., Any], *args: Any, world_size: int, timeout_s: float = 60
) -> list[Any]:
    """Call `function(*args)` on every rank of a gloo world and return the results by rank.

    Raises: RankError naming the first rank that raised, died or hung, with its traceback; the
    others are killed.
    """
    torch.set_num_threads(1)  # A forked child hangs in an OpenMP pool that its parent has used.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="mimo-launch-") as folder:
        store = Path(folder)
        pipes, processes = [], []
        for rank in range(world_size):
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank_main,
                args=(rank, world_size, store, writer, function, args, timeout_s),
                daemon=True,
            )
            process.start()
            writer.close()
            pipes.append(reader)
            processes.append(process)
        try:
            return _collect(pipes, store, timeout_s)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
            for process in processes:
                process.join()
            for pipe in pipes:
                pipe.close()


def _collect(pipes: list[Connection], folder: Path, timeout_s: float) -> list[Any]:
    """Wait for every rank; raise for the first that fails."""
    results: dict[int, Any] = {}
    open_pipes = dict(zip(pipes, range(len(pipes)), strict=True))
    deadline = time.monotonic() + timeout_s
    while open_pipes:
        ready = wait(list(open_pipes), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            waiting = sorted(open_pipes.values())
            stacks = [f"rank {r}:\n{_stack(folder, r)}" for r in waiting]
            raise RankError(f"ranks {waiting} hung for {timeout_s:.0f} s\n" + "\n".join(stacks))
        for pipe in ready:
            rank = open_pipes.pop(pipe)  # type: ignore[call-overload]
            try:
                ok, value = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except (EOFError, ConnectionResetError):
                raise RankError(f"rank {rank} died without a word") from None
            if not ok:
                raise RankError(f"rank {rank} failed:\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(pipes))]


def _stack(folder: Path, rank: int) -> str:
    path = folder / f"stack-{rank}"
    return path.read_text() if path.exists() else "(no stack)"


def _rank_main(
    rank: int,
    world_size: int,
    folder: Path,
    pipe: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    timeout_s: float,
) -> None:
    """Enter as a rank, send (ok, result or traceback), leave without interpreter shutdown."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (folder / f"stack-{rank}").open("w") as stack:
        # A little before the parent gives up, so that the stack is there to be read.
        faulthandler.dump_traceback_later(max(0.1, timeout_s - 0.5), file=stack)
        try:
            dist.init_process_group(
                "gloo",
                store=dist.FileStore(str(folder / "store"), world_size),  # type: ignore[attr-defined]
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=timeout_s + 5),
            )
            message = (True, function(*args))
            if dist.is_initialized():
                dist.barrier()
        except BaseException:
            text = io.StringIO()
            traceback.print_exc(file=text)
            message = (False, text.getvalue())
        # Plain pickle: torch's own would pass tensors by handles that die with this process.
        pipe.send_bytes(pickle.dumps(message))
        pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # gloo's threads sometimes abort at interpreter exit, which would turn success into failure.
    os._exit(0)
