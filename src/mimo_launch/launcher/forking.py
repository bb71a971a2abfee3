"""Forks: prepares this process for them, and asks a forked child one question.

Decides: the list of slow imports, which workers inherit; none initialises CUDA, which does not
survive a fork. Every forked process gets new output streams: at the moment of the fork, another
thread may hold the locks of the parent's streams, or of a screen that it draws. How long a child
may take to answer, and the message if it dies or hangs; it dies with this process, and leaves stop
signals to it.
Relies on: fork (a spawned worker inherits none of this); pidfds (Linux 5.3); files in memory, so
that a full disk stops no question.
Leaves: workers to `start_workers`, ranks of proofs to `run_on_ranks`, what to do without an answer
to its callers.
"""

import gc
import importlib
import io
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO, TypeVar

import mimo_launch
from mimo_launch.data.sources.custom_records import check_custom_data, custom_sources
from mimo_launch.data.sources.kept_files import cache_folder
from mimo_launch.kinds.registry import kind_of
from mimo_launch.launcher.signals import Interrupted, StopRequest, leave_signals_to
from mimo_launch.launcher.worker_processes import (
    StackFrame,
    signal_name,
    take_stacks,
    write_stacks_on_signal,
)
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec

Answer = TypeVar("Answer")
# Importing a class can take minutes on a slow disk, and so can starting drivers for many GPUs.
ANSWER_SECONDS = 300.0
# A process that is blocked in the kernel does not die; we stop waiting for it.
KILL_SECONDS = 1.0
POLL_SECONDS = 0.2
MAX_CALLS = 5
_OURS = os.path.dirname(mimo_launch.__file__) + os.sep
_IMPORTS = ("<frozen importlib", os.path.dirname(importlib.__file__) + os.sep)


class _FreshStream(io.TextIOWrapper):
    """A stream on a standard descriptor, with a lock that no thread holds."""

    def __init__(self, number: int, replaced: TextIO) -> None:
        raw = io.FileIO(number, "w", closefd=False)
        super().__init__(
            io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True
        )
        # Keep a reference: finalising the stream would wait for its lock and close the descriptor.
        self.replaced = replaced


@cache
def prepare_forks() -> None:
    """Give new output streams to every process that this one forks from now on.

    The child's garbage collector skips the objects it inherits. A full collection would walk
    through all modules of the parent, pause a step for 0.2 s where eight workers share two cores,
    and copy the memory pages that they share.
    """

    def start_afresh() -> None:
        sys.stdout = sys.__stdout__ = _FreshStream(1, sys.stdout)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _FreshStream(2, sys.stderr)  # type: ignore[misc]
        gc.freeze()

    os.register_at_fork(after_in_child=start_afresh)


def keep_kernels() -> None:
    """Let compiled kernels stay in the user's cache, where later runs find them.

    Torch reads the variable when it is imported. Its default is among temporary files.
    """
    folder = cache_folder("kernels")
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def import_for_workers() -> None:
    """Import torch and its distributed parts with one thread per process.

    The first optimizer imports `torch._dynamo`, the first module FSDP and DeviceMesh. These imports
    take several seconds in each of eight workers on two cores, and one second in their parent.
    """
    prepare_forks()
    # Before torch's first parallel region: a forked child would hang in its parent's thread pool.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Makes torch look for GPUs through NVML, not the driver; torch accepts only the value `1`.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    keep_kernels()
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor

    import mimo_launch.checkpoint.loading
    import mimo_launch.launcher.worker
    import mimo_launch.train.loop  # noqa: F401

    torch.set_num_threads(1)


class NoAnswer(Exception):
    """A child gave no answer; the message continues a sentence that names its task."""


class ChildDied(NoAnswer):
    """A child ended before it answered."""


class ChildSilent(NoAnswer):
    """A child did not answer in time."""


def ask_child(question: Callable[[], Answer], stop: StopRequest | None = None) -> Answer:
    """Call a function in a forked child and return its result.

    Raises: ChildDied; ChildSilent after `ANSWER_SECONDS`; Interrupted if `stop` gets a signal.
    """
    with (
        open(os.memfd_create("answer"), "r+b") as answer,
        open(os.memfd_create("stacks"), "rb") as stacks,
    ):
        parent, written = os.getpid(), Path(f"/proc/self/fd/{stacks.fileno()}")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # Otherwise the child would write the buffered text again.
        pid = os.fork()
        if not pid:
            _answer(question, answer, written, parent)
        end = _wait(pid, written, stop)
        answer.seek(0)
        given = answer.read()
        if end or not given:
            raise ChildDied(f"ended the process ({end or 'exit code 0'})")
        answered: Answer = pickle.loads(given)
        return answered


def _answer(
    question: Callable[[], object], answer: BinaryIO, stacks: Path, parent: int
) -> NoReturn:
    """Run the child: answer the question and exit."""
    code = 1
    try:
        leave_signals_to(parent)
        write_stacks_on_signal(stacks)
        answer.write(pickle.dumps(question()))
        answer.flush()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else code
    except BaseException:
        traceback.print_exc()
    finally:
        # Flush only: do not join threads or run exit handlers.
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, stacks: Path, stop: StopRequest | None) -> str:
    """Wait for the end of a child and return how it ended; "" is success."""
    process, deadline = os.pidfd_open(pid), time.monotonic() + ANSWER_SECONDS
    poll = select.poll()
    poll.register(process, select.POLLIN)
    try:
        while not poll.poll(POLL_SECONDS * 1000):
            if stop is not None and stop.signal:
                raise Interrupted(stop.signal)
            if time.monotonic() > deadline:
                where = _place(take_stacks({pid: stacks}).get(pid, ()))
                raise ChildSilent(f"did not end within {ANSWER_SECONDS:g} s{where}")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if poll.poll(KILL_SECONDS * 1000):
            os.waitpid(pid, 0)
        raise
    finally:
        os.close(process)
    return f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}" if code else ""


def _place(frames: tuple[StackFrame, ...]) -> str:
    """Describe the innermost calls of a child that are outside this package."""
    calls = takewhile(lambda frame: not frame.file.startswith(_OURS), frames)
    outside = [str(call) for call in calls if not call.file.startswith(_IMPORTS)]
    return f"; it is at {', '.join(outside[:MAX_CALLS])}" if outside else ""


def custom_class_fault(spec: Spec, stop: StopRequest | None = None) -> str:
    """Return what is wrong with the custom classes that a spec names, or "".

    Raises: Interrupted.
    """
    has_models = any(kind_of(module.model).is_custom for module in spec.modules.values())
    loss = spec.modules[LANGUAGE].loss if LANGUAGE in spec.modules else None
    if not has_models and loss is None and not any(custom_sources(spec.data)):
        return ""
    import_for_workers()  # Here, so that workers inherit torch, too, not only the child.

    def fault() -> str:
        from mimo_launch.diag.users_code import CustomClassError
        from mimo_launch.models.custom_stages import check_custom_classes

        try:
            check_custom_classes(spec)
            check_custom_data(spec.data)
        except CustomClassError as error:
            return str(error)
        return ""

    try:
        return ask_child(fault, stop)
    except NoAnswer as error:
        return f"importing the classes {error}"
