"""Keeps a listener that fails from stopping the run.

Decides: the first failure is reported once, and the listener hears no more.
Relies on: nothing.
Leaves: `metrics.jsonl`, whose failures `on_write_error` rules, to `train.metrics_file`.
"""

from typing import Protocol

from mimo_launch.train.events import Event, Listener, ListenerFailed


class Closable(Protocol):
    """A listener that holds a file or a connection."""

    def __call__(self, event: Event) -> None:
        """Take note of an event."""

    def close(self) -> None:
        """Finish; no event comes after."""


class Guarded:
    """Passes events on to a listener until it fails; then `tell` hears why, once."""

    def __init__(self, name: str, listener: Closable, tell: Listener) -> None:
        self._name, self._listener, self._tell = name, listener, tell
        self._failed = False

    def __call__(self, event: Event) -> None:
        """Pass an event on."""
        if self._failed:
            return
        try:
            self._listener(event)
        except Exception as error:
            self._fail(error, "it gets no more numbers of this run; training goes on")

    def close(self) -> None:
        """Close the listener, also one that failed: it may hold a process or a file."""
        try:
            self._listener.close()
        except Exception as error:
            if not self._failed:
                self._fail(error, "its last numbers may be missing")

    def _fail(self, error: Exception, effect: str) -> None:
        # First of all: `tell` calls this listener, too.
        self._failed = True
        self._tell(ListenerFailed(listener=self._name, reason=reason_of(error), effect=effect))


def reason_of(error: Exception) -> str:
    """Return the first line of what an error says."""
    return (str(error).strip() or repr(error)).splitlines()[0]
