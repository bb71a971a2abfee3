"""Processes that work on parts of a list together.

Decides: how a list is shared: in runs of equal length, whose results come back in its order.
Relies on: fork: the others begin as copies of this process, which has started no thread.
Leaves: the work to its callers. It must not depend on what was done before, or else the number of
processes would change its results.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# More share too little work.
_MOST = 8


class Team:
    """Calls the methods of an object in this process and in copies of it; alone by default."""

    def __init__(self, of: Any, processes: int = 1) -> None:
        self._of, self._wanted = of, processes
        self._others: list[tuple[Any, Connection]] = []

    def __enter__(self) -> Self:
        if self._wanted == 1:
            return self
        from multiprocessing import get_context  # 15 ms, which small jobs do not need.

        context = get_context("fork")
        for _ in range(1, self._wanted):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(self._of, there), daemon=True)
            process.start()
            there.close()
            self._others.append((process, here))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process, pipe in self._others:
            pipe.close()
            process.terminate()
            process.join()
        self._others.clear()

    def map(self, method: str, items: Iterable[Sequence[Any]]) -> list[Any]:
        """Return what a method gives for each tuple of arguments, in their order."""
        todo = list(items)
        share = -(-len(todo) // (1 + len(self._others))) or 1
        parts = [todo[first : first + share] for first in range(0, len(todo), share)]
        asked = list(zip(self._others, parts[1:], strict=False))
        for (_, pipe), part in asked:
            pipe.send((method, part))
        found = _results(self._of, method, parts[0]) if parts else []
        for (_, pipe), _part in asked:
            found += pipe.recv()
        return found


def processes_here() -> int:
    """Return how many processes a search may use: one for each core, up to a limit."""
    return min(_MOST, len(os.sched_getaffinity(0)))


def _results(of: Any, method: str, items: Iterable[Sequence[Any]]) -> list[Any]:
    call: Callable[..., Any] = getattr(of, method)
    return [call(*each) for each in items]


def _serve(of: Any, pipe: "Connection") -> None:
    """Answer until the other end closes, or the user interrupts."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            method, items = pipe.recv()
            pipe.send(_results(of, method, items))
