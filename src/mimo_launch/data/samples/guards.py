"""Bounds on programs that come with a model: its chat template, and the regexes of its tokenizer.

Decides: how much memory and time a chat template may take for one conversation.
Relies on: limits and timers of this process, which belong to its main thread. Samples are indexed
there; threads that read them later see only samples that passed.
Leaves: messages about a sample or a tokenizer to callers.
"""

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
# Templates need a few milliseconds, and a few copies of a text of at most `data.max_characters`.
MEMORY, SECONDS = 1 << 30, 10.0


class TooMuch(Exception):
    """A program exceeds a bound; the message says which."""


@contextmanager
def bounds() -> Iterator[None]:
    """Bound the memory and the processor time of a block. Raises: TooMuch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooMuch(f"takes more than {SECONDS:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", "rb", buffering=0) as file:
        pages = int(file.read().split()[0])
    others = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    most = min([pages * resource.getpagesize() + MEMORY, *others])
    before = signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except MemoryError as error:
        raise TooMuch(f"takes more than {MEMORY >> 30} GiB of memory") from error
    finally:  # Runs even if the timer fires at the last moment.
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


def without_panic(call: Callable[[], T]) -> T:
    """Return the result of a call of the tokenizers library.

    If the library panics, as when a regex backtracks too often, it writes a backtrace to stderr and
    raises an error that is not an `Exception`.

    Raises: ValueError in place of a panic, and whatever else the call raises.
    """
    try:
        with _panics_unwritten():
            return call()
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from None


@contextmanager
def _panics_unwritten() -> Iterator[None]:
    """Hold back stderr during a block: drop it if the block raises, else write it afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with open(os.memfd_create("stderr"), "r+b", buffering=0) as kept:
        stderr = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        if kept.tell():
            kept.seek(0)
            os.write(2, kept.read())
