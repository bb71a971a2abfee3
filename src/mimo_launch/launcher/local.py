"""Starts the workers of one host through torch elastic, inside this process.

Decides: fork from a parent that has imported what workers need (8 ranks start in about a second),
one pipe for the events of rank 0, one log folder.
Relies on: torch elastic to watch the workers and to stop all when one fails.
Leaves: the work to `worker`, showing events and failures to `cli`.
"""

import json
import logging
import os
import threading
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.launcher.exits import Exit, ExitWatch
from mimo_launch.launcher.preload import import_for_workers
from mimo_launch.spec.model import Spec
from mimo_launch.train.events import Event, Listener

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


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
    pump = _Pump(reader, listener)
    # Shared with the forked workers, each of which writes its own entry.
    pids = RawArray("i", nproc)
    pump.start()
    try:
        with ExitWatch(pids) as exits:
            elastic_launch(config, _worker)(spec, run_dir, writer, profile_steps, pids)
    except ChildFailedError as error:
        raise _failure(error.failures, exits.failures, logs) from error
    except SignalException as stop:
        raise Interrupted(int(stop.sigval)) from None
    finally:
        writer.send(None)
        pump.join(timeout=5)
    if pump.error is not None:
        raise pump.error


def _worker(
    spec: Spec, run_dir: Path, events: Connection, profile_steps: int, pids: MutableSequence[int]
) -> None:
    from mimo_launch.launcher.worker import run_worker

    pids[int(os.environ["RANK"])] = os.getpid()
    run_worker(spec, run_dir, (events.send,), profile_steps=profile_steps)


class _Pump(threading.Thread):
    """Hands events from rank 0 to the listener until the launcher says that no more will come.

    A listener that fails (a closed terminal) hears no more, but the pipe is still emptied: rank 0
    would block in it, and all others would wait for rank 0.
    """

    def __init__(self, reader: Connection, listener: Listener) -> None:
        super().__init__(daemon=True)
        self._reader, self._listener = reader, listener
        self.error: BaseException | None = None

    def run(self) -> None:
        """Pass events on."""
        while True:
            event: Event | None = self._reader.recv()
            if event is None:
                return
            if self.error is None:
                try:
                    self._listener(event)
                except BaseException as error:
                    self.error = error


def _failure(
    failures: "dict[int, ProcessFailure]", exits: Sequence[Exit], logs: Path
) -> WorkerFailure:
    """Return the failure of the rank that failed by itself, not for want of a peer."""
    rank = exits[0].rank if exits else min(failures, key=lambda r: failures[r].timestamp)
    if rank in failures:
        return WorkerFailure(rank, _message(failures[rank].message), logs)
    if exits[0].killed_by:
        return WorkerFailure(rank, f"killed by {exits[0].killed_by}", logs)
    said = next(logs.glob(f"*/attempt_0/{rank}/error.json"), None)
    message = f"left with status {exits[0].status}"
    return WorkerFailure(
        rank, message if said is None else _message(json.loads(said.read_text())), logs
    )


def _message(message: object) -> str:
    """Return the error that a worker left behind, without its envelope."""
    if isinstance(message, dict):
        message = message.get("message", message)
    if isinstance(message, dict):
        message = message.get("message", message)
    return str(message)
