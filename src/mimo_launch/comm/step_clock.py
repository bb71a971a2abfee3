"""Records when this rank did what, on request.

Decides: which times count: on a CPU, when a call starts and returns; on a GPU, when the compute
stream reaches it, because the host runs ahead of the GPU.
Relies on: one clock for all ranks of a host; CUDA events, which cost a few microseconds each.
Leaves: the choice of what to record to the executor, the session and `process_groups`, and reading
it to `train`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch.profiler import record_function

from mimo_launch.schedule.actions import Slot


class Section(StrEnum):
    """Parts of a step other than slots of the program."""

    STEP = "step"
    PARTIAL_SUMS = "partial sums"
    TOTALS = "totals"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """A collective inside a slot in which these ranks exchange tokens with experts."""

    ranks: tuple[int, ...]


What = Slot | Section | TokenExchange
# What ran, and when it started and ended, in seconds of the host's clock.
Noted = tuple[What, float, float]
_Instant = Any  # A host time in seconds, or a torch.cuda.Event.


class StepClock:
    """Records spans of time between `start` and `stop`; costs nothing otherwise."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._noted: list[tuple[What, _Instant, _Instant]] | None = None
        self._origin: tuple[float, _Instant] = (0.0, 0.0)  # One moment on both clocks.

    def start(self) -> float:
        """Start to record; return the time. Waits for the GPU, to align its clock to the host's."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._origin = (time.perf_counter(), self._now())
        self._noted = []
        return self._origin[0]

    @contextmanager
    def span(self, what: What) -> Iterator[None]:
        """Record the span inside unless it raises; torch's traces show it by name."""
        if self._noted is None:
            yield
            return
        begin = self._now()
        with record_function(_name(what)):
            yield
        self._noted.append((what, begin, self._now()))

    def stop(self) -> list[Noted]:
        """Return the spans recorded since `start`, ordered by their ends. Waits for the GPU."""
        noted, self._noted = self._noted or [], None
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return [(what, self._seconds(begin), self._seconds(end)) for what, begin, end in noted]

    def _now(self) -> _Instant:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _seconds(self, instant: _Instant) -> float:
        """Return an instant on the host's clock."""
        if isinstance(instant, float):
            return instant
        host, origin = self._origin
        return host + float(origin.elapsed_time(instant)) / 1e3


def _name(what: What) -> str:
    """Return the name of a part of a step in torch's traces."""
    if isinstance(what, TokenExchange):
        return "token exchange"
    return what.value if isinstance(what, Section) else " + ".join(map(str, what))
