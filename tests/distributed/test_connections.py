"""A send waits for nobody, from the first on: not even for its connection."""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tests.support.specs import box, spec

from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.rank_session import RankSession

DELAY_SECONDS = 1.5
ROOT = Path(__file__).parents[2]


def seconds_of_sends(made: Spec) -> float:
    """Post a send on every channel of rank 0, while rank 1 looks away; return how long it took."""
    with RankSession(Plan.of(made)) as session:
        token, took, works = torch.ones(1), 0.0, []
        dist.barrier()
        if session.rank == 1:
            time.sleep(DELAY_SECONDS)
        for channel in session.mine.channels:
            group = session.grids.p2p(channel)
            begin = time.monotonic()
            if channel.src == session.rank:
                works.append(dist.isend(token, channel.dst, group=group))
                took = max(took, time.monotonic() - begin)
            else:
                works.append(dist.irecv(torch.empty(1), channel.src, group=group))
        for work in works:
            work.wait()
        return took


def slowest_send() -> float:
    made = spec({"vision": box(0), "language": box(1)}, microbatches=2)
    return run_ranks(seconds_of_sends, made, world_size=2)[0]


def test_a_send_does_not_wait_for_the_connection() -> None:
    # As `train` has it: gloo then connects two ranks when both first need it. Torch reads the
    # variable when it is imported.
    code = "from tests.distributed.test_connections import slowest_send; print(slowest_send())"
    environment = {**os.environ, "TORCH_GLOO_LAZY_INIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert float(done.stdout) < DELAY_SECONDS / 2, done.stderr
