"""The facts that the launchers or watchers of a job exchange.

Decides: each publishes one set of facts, which node 0 passes on to all, twice a second; a host has
left if no facts arrive from it for `LOST_SECONDS`.
Relies on: a torch store on node 0.
Leaves: what the facts mean to `hosts`.

A thread makes all calls to the store: on a broken network they block for minutes.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from mimo_launch.diag.quantities import named_ranks
from mimo_launch.launcher.verdict import Host

PERIOD_SECONDS = 0.5
LOST_SECONDS = 10.0
LEAVE_SECONDS = 5.0
POLL_SECONDS = 0.05
# Only node 0 needs this fact, one per attempt; it is too large to pass on.
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
        """Publish facts in addition to earlier ones."""
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


class AllHosts:
    """All hosts of a job, seen from `node`. A fact belongs to one attempt, or to all.

    Every host publishes its `name` and its `ranks`.
    """

    def __init__(self, messages: HostMessages, node: int, num_nodes: int) -> None:
        self.messages, self.node, self.num_nodes = messages, node, num_nodes
        self.attempt_number = 0

    @property
    def others(self) -> list[int]:
        """All nodes but this one."""
        return [node for node in range(self.num_nodes) if node != self.node]

    @property
    def silent(self) -> list[int]:
        """Nodes that have been silent for too long."""
        return [node for node in self.others if self.messages.silence(node) > LOST_SECONDS]

    def say(self, name: str, fact: Any) -> None:
        """Publish a fact about this attempt."""
        self.messages.say(**{f"{name} {self.attempt_number}": fact})

    def said(self, node: int, name: str) -> Any:
        """Return a node's fact about this attempt, or None."""
        return self.messages.said(node, f"{name} {self.attempt_number}")

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition, at most this many seconds; return whether it holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def host(self, node: int) -> Host:
        """Return the name and ranks of a host, as far as they are known."""
        ranks = self.messages.said(node, "ranks") or ()
        name = self.messages.said(node, "name") or f"node {node}"
        return Host(node=node, name=name, ranks=tuple(ranks))

    def names(self, nodes: Sequence[int]) -> str:
        """Return the names of hosts for a message."""
        known = (self.host(node) for node in nodes)
        return ", ".join(f"{h.name} (node {h.node}, {named_ranks(h.ranks)})" for h in known)

    def close(self, absent: Sequence[int] = ()) -> None:
        """Leave; node 0 serves the store, so it leaves after all nodes that are not `absent`."""
        self.messages.say(bye=True)
        if 0 not in self.silent:
            self.messages.flush(LEAVE_SECONDS)
        if self.node == 0:
            came = [node for node in self.others if self.messages.said(node, "name")]
            self.until(
                lambda: all(
                    self.messages.said(n, "bye") or n in self.silent or n in absent for n in came
                ),
                LEAVE_SECONDS,
            )
        self.messages.close()
