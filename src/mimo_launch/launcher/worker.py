"""What a worker process does, whoever started it.

Decides: rendezvous from the environment that torch elastic sets, and what rank 0 reports.
Relies on: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
Leaves: starting workers to `local`.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from mimo_launch.spec.model import Spec
from mimo_launch.train.events import Event, Listener
from mimo_launch.train.loop import Hooks, train
from mimo_launch.train.metrics import MetricsFile
from mimo_launch.train.profile import Profile
from mimo_launch.train.session import RankSession
from mimo_launch.train.start import start_run


def run_worker(
    spec: Spec, run_dir: Path, listeners: Sequence[Listener] = (), *, profile_steps: int = 0
) -> None:
    """Train as one rank; rank 0 writes metrics and tells `listeners`.

    `profile_steps` steps are measured, their timelines written to `run_dir/profile`.

    Ranks: collective over the world. Raises: whatever went wrong on this rank.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=spec.train.timeout))
    metrics = MetricsFile(run_dir / "metrics.jsonl") if dist.get_rank() == 0 else None
    sinks: list[Listener] = [] if metrics is None else [metrics, *listeners]

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    try:
        with RankSession(spec) as session:
            folder = run_dir / "profile"
            profile = Profile(session, folder, profile_steps) if profile_steps else None
            state, saver = start_run(session, run_dir, emit)
            train(session, emit, Hooks(saver=saver, profile=profile), state)
    finally:
        if metrics is not None:
            metrics.close()
        if dist.is_initialized():
            dist.destroy_process_group()
