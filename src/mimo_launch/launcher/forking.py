"""What this process does before it forks others, and a child that answers one question.

Decides: the list of slow imports, which workers inherit; none initialises CUDA, which does not
survive a fork. Every forked process gets output streams of its own: another thread may hold the
locks of the parent's streams, or of a screen that it draws, at the moment of the fork. A child
answers questions that must leave no trace in this process: whether there are GPUs, whether custom
classes work. It has five minutes.
Relies on: fork; a spawned worker gains nothing.
Leaves: workers to `start_workers`, ranks of proofs to `run_on_ranks`.
"""

import gc
import io
import multiprocessing
import os
import sys
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import TextIO, TypeVar

import mimo_launch
from mimo_launch.kinds.registry import kind_of
from mimo_launch.launcher.worker_processes import take_stacks, write_stacks_on_signal
from mimo_launch.spec.spec import Spec

Answer = TypeVar("Answer")
# Slow disks take minutes to import what a class needs, and hosts with many GPUs to start drivers.
ANSWER_SECONDS = 300.0
END_SECONDS = 10.0
# Of a child that is silent.
MAX_CALLS = 5
PACKAGE = os.path.dirname(mimo_launch.__file__)


class _FreshStream(io.TextIOWrapper):
    """A stream on a standard descriptor, with a lock that no thread holds."""

    def __init__(self, number: int, replaced: TextIO) -> None:
        raw = io.FileIO(number, "w", closefd=False)
        super().__init__(
            io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True
        )
        # Kept: finalising it would wait for its lock, and close the descriptor.
        self.replaced = replaced


@cache
def prepare_forks() -> None:
    """Give every process that this one forks from now on output streams of its own.

    Its garbage collector leaves out what it inherits. A full collection would walk through all
    modules of the parent: a pause of 0.2 s in the middle of a step where eight workers share two
    cores, and copies of the pages that they share.
    """

    def start_afresh() -> None:
        sys.stdout = sys.__stdout__ = _FreshStream(1, sys.stdout)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _FreshStream(2, sys.stderr)  # type: ignore[misc]
        gc.freeze()

    os.register_at_fork(after_in_child=start_afresh)


def import_for_workers() -> None:
    """Import torch and its distributed parts with one thread per process.

    The first optimizer imports `torch._dynamo`, the first module FSDP and DeviceMesh. In each of
    eight workers on two cores these imports take seconds; in their parent they take one.
    """
    prepare_forks()
    # Before torch's first parallel region: a forked child would hang in its parent's thread pool.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Makes torch look for GPUs through NVML, not the driver; it accepts no value but `1`.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor

    import mimo_launch.checkpoint.loading
    import mimo_launch.launcher.worker
    import mimo_launch.train.loop  # noqa: F401

    torch.set_num_threads(1)


class NoAnswer(Exception):
    """A child gave no answer; the message says how, after what was asked of it."""


class ChildDied(NoAnswer):
    """A child ended before it answered."""


class ChildSilent(NoAnswer):
    """A child did not answer in time, and was ended."""


def ask_child(question: Callable[[], Answer]) -> Answer:
    """Call a function in a forked child and return its result.

    Raises: ChildDied, or ChildSilent after `ANSWER_SECONDS`.
    """
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    # In memory: a full disk stops no question.
    stack = os.memfd_create("stack")
    written = Path(f"/proc/self/fd/{stack}")

    def answer() -> None:
        write_stacks_on_signal(written)
        writer.send(question())

    child = context.Process(target=answer, daemon=True)
    child.start()
    writer.close()
    try:
        if not reader.poll(ANSWER_SECONDS):
            place = _place(child, written)
            child.kill()
            raise ChildSilent(f"gave no answer in {ANSWER_SECONDS:g} s" + place)
        answered: Answer = reader.recv()
    except EOFError:
        child.join()
        raise ChildDied(f"ended the process (exit code {child.exitcode})") from None
    finally:
        # One that has answered may still hang in a driver that it leaves.
        child.join(END_SECONDS)
        child.kill()
        reader.close()
        os.close(stack)
    return answered


def _place(child: ForkProcess, written: Path) -> str:
    """Return words for the innermost calls of a child that are not of this package."""
    frames = take_stacks({child.pid or 0: written}).get(child.pid or 0, ())
    asked = (PACKAGE, os.path.join("importlib", "__init__.py"))
    calls = takewhile(lambda frame: not any(part in frame.file for part in asked), frames)
    outside = [str(call) for call in calls if not call.file.startswith("<frozen ")]
    return f"; it is at {', '.join(outside[:MAX_CALLS])}" if outside else ""


def custom_class_fault(spec: Spec) -> str:
    """Return what is wrong with the custom classes that a spec names, or nothing."""
    if not any(kind_of(module.model).is_custom for module in spec.modules.values()):
        return ""
    import_for_workers()  # Here, or the child would import torch for itself only.

    def fault() -> str:
        from mimo_launch.models.custom_encoder import CustomClassError
        from mimo_launch.models.custom_stages import check_custom_classes

        try:
            check_custom_classes(spec)
        except CustomClassError as error:
            return str(error)
        return ""

    try:
        return ask_child(fault)
    except NoAnswer as error:
        return f"importing the classes {error}"
