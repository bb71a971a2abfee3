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

from mimo_launch.runtime.whereabouts import Phase, Whereabouts
from mimo_launch.spec.model import Spec
from mimo_launch.train.events import Event, Listener
from mimo_launch.train.listeners.build import listeners_of
from mimo_launch.train.listeners.guard import Guarded
from mimo_launch.train.loop import Hooks, train
from mimo_launch.train.metrics import MetricsFile
from mimo_launch.train.profile import Profile
from mimo_launch.train.session import RankSession
from mimo_launch.train.start import start_run


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
    profile_steps: int = 0,
    links: Links | None = None,
) -> int:
    """Train as one rank and return the signal that ended the run, or 0.

    Rank 0 writes metrics and tells `listeners`. `profile_steps` steps are measured, their timelines
    written to `run_dir/profile`.

    Ranks: collective over the world. Raises: whatever went wrong on this rank.
    """
    links = links or Links(Whereabouts())
    torch.set_num_threads(1)
    sinks: list[Listener] = []

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    metrics: MetricsFile | None = None
    logs: list[Guarded] = []
    try:
        links.where.enter(Phase.CONNECTING)
        dist.init_process_group("gloo", timeout=timedelta(seconds=spec.train.timeout))
        if dist.get_rank() == 0:
            stops = spec.train.on_write_error == "stop"
            metrics = MetricsFile(run_dir / "metrics.jsonl", emit, stops_on_error=stops)
            logs = listeners_of(spec, run_dir, emit)
            sinks += [metrics, *listeners, *logs]
        session = RankSession(spec, where=links.where)
        profile = Profile(session, run_dir / "profile", profile_steps) if profile_steps else None
        state, saver = start_run(session, run_dir, emit)
        hooks = Hooks(saver=saver, stop=links.stop, profile=profile)
        ended_by = train(session, emit, hooks, state)
    except BaseException as error:
        links.failed(error)
        raise
    finally:
        for log in logs:
            log.close()
        if metrics is not None:
            metrics.close()
        if dist.is_initialized():
            dist.destroy_process_group()
    links.where.finished(ended_by)
    return ended_by
