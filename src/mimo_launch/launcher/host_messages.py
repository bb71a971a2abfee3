"""What the launchers of a job know of each other.

Decides: every launcher publishes one set of facts, and node 0 passes them on to all, twice a
second; a launcher whose facts no longer arrive is silent.
Relies on: a store of torch at node 0.
Leaves: what the facts mean to `hosts`.

A thread makes all calls of the store: on a broken network they block for minutes.
"""

import json
import threading
import time
from typing import Any

PERIOD_SECONDS = 0.5
# Only node 0 needs these facts, one per attempt; they are too large to pass on.
PRIVATE = "report"


class HostMessages(threading.Thread):
    """Exchanges facts until it is closed or the store is gone."""

    def __init__(self, store: Any, node: int, num_nodes: int) -> None:
        super().__init__(daemon=True)
        self._store, self._node, self._num_nodes = store, node, num_nodes
        self._mine: dict[str, Any] = {}
        self._heard: dict[int, dict[str, Any]] = {}
        self._moved = dict.fromkeys(range(num_nodes), time.monotonic())
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._version = self._sent = 0
        self._closed = self._broken = False

    def say(self, **facts: Any) -> None:
        """Publish facts, besides those published before."""
        with self._lock:
            self._mine = {**self._mine, **facts}
            self._version += 1
        self._changed.set()

    def said(self, node: int, name: str) -> Any:
        """Return the newest fact with this name from a node, or None."""
        return self._mine.get(name) if node == self._node else self._heard.get(node, {}).get(name)

    def silence(self, node: int) -> float:
        """Return the seconds since a node's facts last arrived."""
        if node == self._node:
            return 0.0
        if self._broken:
            return float("inf")
        return time.monotonic() - self._moved[node]

    def flush(self, seconds: float) -> None:
        """Wait until all facts have been published, at most this many seconds."""
        deadline = time.monotonic() + seconds
        while self._sent < self._version and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        """Stop the exchange."""
        self._closed = True
        self._changed.set()

    def run(self) -> None:
        """Exchange facts until closed."""
        beat = 0
        while not self._closed:
            self._changed.clear()
            with self._lock:
                version, mine = self._version, {**self._mine, "beat": beat}
            try:
                self._exchange(mine)
            except RuntimeError:  # The type of all network errors of torch.
                self._broken = True
                return
            self._sent = version
            beat += 1
            self._changed.wait(PERIOD_SECONDS)

    def _exchange(self, mine: dict[str, Any]) -> None:
        if self._node:
            self._store.set(f"node/{self._node}", json.dumps(mine))
            if self._store.check(["all"]):
                for node, facts in json.loads(self._store.get("all")).items():
                    self._note(int(node), facts)
            return
        for node in range(1, self._num_nodes):
            if self._store.check([f"node/{node}"]):
                self._note(node, json.loads(self._store.get(f"node/{node}")))
        known = {**self._heard, 0: mine}
        public = {
            node: {name: fact for name, fact in facts.items() if name.partition(" ")[0] != PRIVATE}
            for node, facts in known.items()
        }
        self._store.set("all", json.dumps(public))

    def _note(self, node: int, facts: dict[str, Any]) -> None:
        if node != self._node:
            if facts.get("beat") != self._heard.get(node, {}).get("beat"):
                self._moved[node] = time.monotonic()
            self._heard[node] = facts
