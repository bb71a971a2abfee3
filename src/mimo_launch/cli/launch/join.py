"""Runs this process as a rank that torchrun or srun started, without a launcher of ours.

Decides: what is printed about an error, and the exit code.
Relies on: `launcher.worker` for the run.
Leaves: ending the other ranks to the program that started them.
"""

import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.cli.shared.console import Console

if TYPE_CHECKING:
    from mimo_launch.launcher.rank_tasks import Job
    from mimo_launch.launcher.run_lock import RunLock
    from mimo_launch.launcher.torchrun_slurm import JoinedWorld
    from mimo_launch.train.events import Listener

# A rank that only lost its peers exits this much later than the rank that failed on its own, so
# that torchrun or srun sees the latter first.
STAY_SECONDS = 2.0


def join(
    job: "Job",
    world: "JoinedWorld",
    console: Console,
    listener: "Listener | None" = None,
    lock: "RunLock | None" = None,
) -> int:
    """Run one of the ranks that torchrun or srun started; return the exit code.

    `listener` gets the events of rank 0, which holds the `lock` of the run folder.
    """
    from mimo_launch.launcher.gpus import gpu_settings
    from mimo_launch.launcher.run_lock import FolderLost
    from mimo_launch.launcher.signals import JoinedStop
    from mimo_launch.launcher.worker import Links, run_worker
    from mimo_launch.launcher.worker_logs import RECORDER
    from mimo_launch.runtime.progress import Progress

    if job.device != "cpu":
        os.environ.update(gpu_settings(job.run / RECORDER))
    signals = JoinedStop()
    signals.install()

    def stop() -> int:
        number = signals()
        if lock is not None and number:
            lock.stopping()
        if lock is not None and lock.lost:
            raise FolderLost(f"the run folder no longer belongs to this run: {lock.lost}")
        return number

    links = Links(
        progress=Progress(),
        stop=stop,
        report_error_and_stay=_report_error_and_stay,
        group=world.group,
    )
    listeners = [] if listener is None else [listener]
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    try:
        ended_by = run_worker(
            job.plan, job.run, listeners, task=job.task, device=job.device, links=links
        )
    except Exception:
        console.note(f"error: rank {os.environ['RANK']} failed\n{traceback.format_exc()}")
        ended_by, status = 0, 1
    else:
        status = 128 + ended_by if ended_by else 0
    if lock is not None:
        lock.close()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    # gloo's threads sometimes abort at interpreter exit, which would make a success a failure.
    os._exit(status)


def _report_error_and_stay(error: BaseException) -> None:
    from mimo_launch.launcher.worker_errors import cause_of, write_error
    from mimo_launch.runtime.progress import Cause

    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        with suppress(Exception):
            write_error(error, Path(os.environ["TORCHELASTIC_ERROR_FILE"]))
    if cause_of(error) in (Cause.LOST, Cause.TIMEOUT):
        time.sleep(STAY_SECONDS)
