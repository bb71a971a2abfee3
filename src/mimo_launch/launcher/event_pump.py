"""Hands events from rank 0 to a listener in the launcher.

Decides: a listener that fails hears no more, but the pipe is still emptied: rank 0 would block in
it, and all others would wait for rank 0.
Relies on: the pipe ending when rank 0 does.
Leaves: showing events to `cli`.
"""

import threading
from multiprocessing.connection import Connection

from mimo_launch.train.events import Event, Listener


class Pump(threading.Thread):
    """Passes events on until the other end is closed; `error` is what the listener raised."""

    def __init__(self, reader: Connection, listener: Listener) -> None:
        super().__init__(daemon=True)
        self._reader, self._listener = reader, listener
        self.error: BaseException | None = None

    def run(self) -> None:
        """Pass events on."""
        while True:
            try:
                event: Event = self._reader.recv()
            except (EOFError, OSError):
                return
            if self.error is None:
                try:
                    self._listener(event)
                except BaseException as error:
                    self.error = error
