"""What a worker process does, whoever started it.

Decides: rendezvous from the environment, what rank 0 reports, and that a rank which fails says so
before its peers lose it.
Relies on: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
Leaves: starting workers to `local`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from mimo_launch.launcher.tasks import RankTask
from mimo_launch.runtime.whereabouts import Phase, Whereabouts
from mimo_launch.spec.model import Spec
from mimo_launch.train.events import Event, Listener
from mimo_launch.train.listeners.guard import Closable
from mimo_launch.train.session import RankSession


def _no_signal() -> int:
    return 0


def _nobody_to_tell(error: BaseException) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Links:
    """A worker's links to whoever started it.

    `stop` returns a signal after which to stop, or 0; `failed` is called with the error of this
    rank while its peers still have it.
    """

    where: Whereabouts
    stop: Callable[[], int] = _no_signal
    failed: Callable[[BaseException], None] = _nobody_to_tell


def run_worker(
    spec: Spec,
    run_dir: Path,
    listeners: Sequence[Listener] = (),
    *,
    task: RankTask,
    links: Links | None = None,
) -> int:
    """Do `task` as one rank and return the signal that ended it, or 0.

    Rank 0 keeps the task's records and tells `listeners`.

    Ranks: collective over the world. Raises: whatever went wrong on this rank.
    """
    links = links or Links(Whereabouts())
    torch.set_num_threads(1)
    sinks: list[Listener] = []

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    records: list[Closable] = []
    try:
        links.where.enter(Phase.CONNECTING)
        dist.init_process_group("gloo", timeout=timedelta(seconds=spec.train.timeout))
        if dist.get_rank() == 0:
            records = task.records(spec, run_dir, emit)
            sinks += [*records, *listeners]
        session = RankSession(spec, where=links.where)
        ended_by = task.run(session, run_dir, emit, links.stop)
    except BaseException as error:
        links.failed(error)
        raise
    finally:
        for record in reversed(records):
            record.close()
        if dist.is_initialized():
            dist.destroy_process_group()
    links.where.finished(ended_by)
    return ended_by
