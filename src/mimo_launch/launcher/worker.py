"""One worker process: start and end of a forked worker, and the work of every rank.

Decides: the process group comes from the environment; what rank 0 reports; a rank that fails
reports it before its peers lose it; how a forked worker notes its progress and exits.
Relies on: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; LOCAL_RANK chooses the GPU.
Leaves: starting workers to `start_workers`, their work to `rank_tasks`.
"""

import gc
import mmap
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from mimo_launch.comm import torch_internals
from mimo_launch.comm.world import DeviceKind, device_for, group_timeout, join_world
from mimo_launch.launcher.rank_tasks import Job, RankTask
from mimo_launch.launcher.shared_progress import WorkerCells
from mimo_launch.launcher.signals import leave_signals_to
from mimo_launch.launcher.worker_errors import OutOfGpuMemory, cause_of, in_words, write_error
from mimo_launch.launcher.worker_logs import STACK, make_folder
from mimo_launch.launcher.worker_processes import name_process, write_stacks_on_signal
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Cause, Phase, Progress
from mimo_launch.train.events import Event, Listener
from mimo_launch.train.listeners import Closable
from mimo_launch.train.rank_session import RankSession

# A failed worker stays this long, unless the launcher kills it earlier.
STAY_SECONDS = 5.0
ALIVE_SECONDS = 0.5
MAX_THREADS = 4
# Python's defaults for its garbage collector.
USUAL_THRESHOLDS = (700, 10, 10)


def worker_main(job: Job, shared: mmap.mmap, events: Connection, launcher: int) -> NoReturn:
    """Run one worker of the process `launcher`; rank 0 sends its events through a pipe."""
    leave_signals_to(launcher)
    error_file = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
    write_stacks_on_signal(error_file.with_name(STACK))
    cells = WorkerCells(shared, int(os.environ["LOCAL_RANK"]))
    answer_for(cells.progress)
    listeners = [events.send]
    if os.environ["RANK"] != "0":
        events.close()
        listeners = []

    is_reported = False

    def report_error_and_stay(error: BaseException) -> None:
        nonlocal is_reported
        is_reported = True
        with suppress(Exception):
            traceback.print_exception(error)
            sys.stderr.flush()
        tell_error(error, cells, error_file)
        # Peers that lost this rank now would fail, too, and hide what they were doing.
        time.sleep(STAY_SECONDS)

    status = 0
    try:
        run_worker(
            job.plan,
            job.run,
            listeners,
            task=job.task,
            device=job.device,
            links=Links(
                progress=cells.progress,
                stop=cells.stop,
                report_error_and_stay=report_error_and_stay,
            ),
        )
    except BaseException as error:
        status = 1
        # `run_worker` has reported errors of the task while peers were connected, but not errors at
        # its end: a record that cannot be closed, or leaving the process group.
        if not is_reported:
            report_error_and_stay(error)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # gloo's threads sometimes abort at interpreter exit, which would turn success into failure.
    os._exit(status)


def tell_error(error: BaseException, cells: WorkerCells, *files: Path) -> None:
    """Report an error of this worker to its watcher, even if the disk or the error is broken."""
    cause = Cause.OWN
    with suppress(Exception):
        cause = cause_of(error)
    with suppress(Exception):
        cells.say(in_words(error))
    for file in files:
        with suppress(Exception):
            write_error(error, file)
    cells.progress.failed(cause)


def answer_for(progress: Progress) -> None:
    """Start a thread that regularly notes that it gets the interpreter.

    It does while the main thread waits for a peer, but not while a call outside Python holds the
    GIL.
    """

    def answer() -> NoReturn:
        while True:
            progress.alive()
            time.sleep(ALIVE_SECONDS)

    threading.Thread(target=answer, name="alive", daemon=True).start()


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a worker to the process that started it.

    `stop` returns a signal after which to stop, or 0. `report_error_and_stay` gets the error of
    this rank while its peers are still connected, and returns when they may lose the rank. `group`
    has the arguments of the process group; by default they come from the environment.
    """

    progress: Progress
    stop: Callable[[], int] = lambda: 0
    report_error_and_stay: Callable[[BaseException], None] = lambda error: None
    group: dict[str, Any] = field(default_factory=dict)


def run_worker(
    plan: Plan,
    run_dir: Path,
    listeners: Sequence[Listener] = (),
    *,
    task: RankTask,
    device: DeviceKind = "cpu",
    links: Links | None = None,
) -> int:
    """Do `task` as one rank and return the signal that ended it, or 0.

    Rank 0 keeps the task's records and calls `listeners`. The caller must then end the process with
    `os._exit`: groups are shut down, but not destroyed.

    Ranks: collective over the world. Raises: the error of this rank.
    """
    links = links or Links(Progress())
    # `cli.app` collects garbage less often; here reference cycles may hold tensors.
    gc.set_threshold(*USUAL_THRESHOLDS)
    name_process(f"mimo rank {os.environ.get('RANK', '0')}")
    sinks: list[Listener] = []

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    records: list[Closable] = []
    try:
        links.progress.enter(Phase.CONNECTING)
        place = device_for(device, int(os.environ.get("LOCAL_RANK", "0")))
        torch.set_num_threads(_num_threads(place))
        join_world(place, timeout=group_timeout(plan.spec.train.timeout, place), **links.group)
        if place.type == "cuda":
            make_folder()
        if dist.get_rank() == 0:
            records = task.records(plan.spec, run_dir, emit)
            sinks += [*records, *listeners]
        quick = task.quick_weights
        session = RankSession(plan, device=place, quick=quick, draw=quick, progress=links.progress)
        ended_by = task.run(session, run_dir, emit, links.stop)
    except torch.OutOfMemoryError as error:
        full = OutOfGpuMemory.on(plan.layout, int(os.environ["RANK"]), error)
        links.report_error_and_stay(full)
        raise full from error
    except BaseException as error:
        links.report_error_and_stay(error)
        raise
    finally:
        for record in reversed(records):
            record.close()
    # Only after success: after an error NCCL would wait for transfers that never end.
    torch_internals.shut_down_groups()
    links.progress.finished(ended_by)
    return ended_by


def _num_threads(place: torch.device) -> int:
    """Return the threads of a worker: a few with a GPU, to read and pack data on the host.

    One without GPUs, since the ranks share the processors.
    """
    if place.type == "cpu":
        return 1
    workers = int(os.environ.get("LOCAL_WORLD_SIZE") or torch.cuda.device_count())
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // workers))
