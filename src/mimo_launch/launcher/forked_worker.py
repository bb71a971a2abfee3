"""The first and last lines of a worker that our launcher has forked.

Decides: how a worker takes its seat at the board, what it does with an error, how it leaves.
Relies on: the environment and the cells that `one_host` passes.
Leaves: the run to `worker`.
"""

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mimo_launch.launcher.progress_board import Seat, SharedMemory
from mimo_launch.launcher.rank_tasks import RankTask
from mimo_launch.launcher.signals import leave_signals_to
from mimo_launch.launcher.stacks import write_stacks_on_signal
from mimo_launch.launcher.worker_errors import cause_of, in_words, write_error
from mimo_launch.launcher.worker_logs import STACK
from mimo_launch.runtime.progress import Cause, Whereabouts
from mimo_launch.spec.model import Spec

if TYPE_CHECKING:
    from mimo_launch.comm.world import DeviceKind

# A worker that has failed stays for so long, unless the launcher has killed it before.
STAY_SECONDS = 5.0
ALIVE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to run: a spec, what for, where, its folder, and the ranks whose output is shown."""

    spec: Spec
    run: Path
    task: RankTask
    device: "DeviceKind" = "cpu"
    shown: frozenset[int] = field(default_factory=frozenset)


def worker_main(job: Job, shared: SharedMemory, events: Connection, launcher: int) -> NoReturn:
    """Be one worker of the process `launcher`; events of rank 0 go into a pipe."""
    from mimo_launch.launcher.worker import Links, run_worker

    leave_signals_to(launcher)
    error_file = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
    write_stacks_on_signal(error_file.with_name(STACK))
    seat = Seat(shared, int(os.environ["LOCAL_RANK"]))
    threading.Thread(target=_answer, args=(seat.where,), name="alive", daemon=True).start()
    listeners = [events.send]
    if os.environ["RANK"] != "0":
        events.close()
        listeners = []

    told = []

    def failed(error: BaseException) -> None:
        told.append(error)
        cause = Cause.OWN
        # The launcher must learn of the error, whatever the disk and the error itself are like.
        with suppress(Exception):
            cause = cause_of(error)
        with suppress(Exception):
            seat.say(in_words(error))
        with suppress(Exception):
            write_error(error, error_file)
        with suppress(Exception):
            traceback.print_exception(error)
            sys.stderr.flush()
        seat.where.failed(cause)
        # Peers that lose this rank now would fail as well, and hide what they were doing.
        time.sleep(STAY_SECONDS)

    status = 0
    try:
        run_worker(
            job.spec,
            job.run,
            listeners,
            task=job.task,
            device=job.device,
            links=Links(where=seat.where, stop=seat.stop, failed=failed),
        )
    except BaseException as error:
        status = 1
        if not told:
            failed(error)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # gloo's threads sometimes abort at interpreter exit, which would turn success into failure.
    os._exit(status)


def _answer(where: Whereabouts) -> NoReturn:
    """Note again and again that threads of this worker get the interpreter.

    They do while the main one waits for a peer, but not while a call outside of Python keeps it.
    """
    while True:
        where.alive()
        time.sleep(ALIVE_SECONDS)
