"""Starts the workers of one host through torch elastic, inside this process.

Decides: fork from a parent that has imported what workers need (8 ranks start in about a second),
one pipe for the events of rank 0, one log folder.
Relies on: torch elastic to watch the workers and to stop all when one fails.
Leaves: the work to `worker`, showing events and failures to `cli`.
"""

import logging
import os
import threading
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.launcher.preload import import_for_workers
from mimo_launch.spec.model import Spec
from mimo_launch.train.events import Event, Listener

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

# What gloo says on a rank whose peer has gone.
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Read error", "Broken pipe")


@dataclass(frozen=True, slots=True)
class WorkerFailure(Exception):
    """The first worker that failed, in words."""

    rank: int
    message: str
    logs: Path


@dataclass(frozen=True, slots=True)
class Interrupted(Exception):
    """A signal stopped the launcher; its workers are gone."""

    signal: int


def launch(
    spec: Spec, run_dir: Path, nproc: int, listener: Listener, *, profile_steps: int = 0
) -> None:
    """Train on `nproc` forked workers and call `listener` with each event of rank 0.

    Raises: WorkerFailure when a worker raises, dies or hangs past its timeout; Interrupted when
    this process gets SIGINT or SIGTERM.
    """
    # Before torch's first parallel region: a forked child would hang in its parent's thread pool.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import_for_workers()
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The agent logs each failure with a traceback of its own; we report it once, in our words.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    logs = run_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=spec.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    reader, writer = Pipe(duplex=False)
    pump = threading.Thread(target=_pump, args=(reader, listener), daemon=True)
    pump.start()
    try:
        elastic_launch(config, _worker)(spec, run_dir, writer, profile_steps)
    except ChildFailedError as error:
        rank = _first_to_fail(error.failures)
        message = _message(error.failures[rank].message)
        raise WorkerFailure(rank, message, logs) from error
    except SignalException as stop:
        raise Interrupted(int(stop.sigval)) from None
    finally:
        writer.send(None)
        pump.join(timeout=5)


def _worker(spec: Spec, run_dir: Path, events: Connection, profile_steps: int) -> None:
    from mimo_launch.launcher.worker import run_worker

    run_worker(spec, run_dir, (events.send,), profile_steps=profile_steps)


def _pump(reader: Connection, listener: Listener) -> None:
    """Hand events from rank 0 to the listener until the launcher says that no more will come."""
    while True:
        event: Event | None = reader.recv()
        if event is None:
            return
        listener(event)


def _first_to_fail(failures: "dict[int, ProcessFailure]") -> int:
    """Return the rank that failed by itself rather than for want of a peer.

    A killed process leaves no time of death, while its peers report a closed connection at once; so
    a death by signal comes first, a lost connection last, and time decides among equals.
    """

    def order(rank: int) -> tuple[bool, bool, int]:
        failure = failures[rank]
        lost_peer = any(words in str(failure.message) for words in LOST_PEER)
        return failure.exitcode >= 0, lost_peer, failure.timestamp

    return min(failures, key=order)


def _message(message: object) -> str:
    """Return the error that a worker left behind, without its envelope."""
    if isinstance(message, dict):
        message = message.get("message", message)
    if isinstance(message, dict):
        message = message.get("message", message)
    return str(message)
