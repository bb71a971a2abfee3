"""How long training stands still for a checkpoint of more than 500 MB.

`nox -s faults -- tests/faults/test_save_stall.py -s` prints the figures. They need a machine that
does nothing else.
"""

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mimo_launch.checkpoint.boxes import state_boxes
from mimo_launch.checkpoint.loading import start_run
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import CheckpointSaved
from mimo_launch.train.rank_session import RankSession

pytestmark = pytest.mark.faults
SAVES = 6


def large(*, asynchronous: bool) -> Spec:
    """Language of 50 million parameters, dp 2: weights and moments in fp32."""
    model = {
        "kind": "decoder", "layers": 4, "hidden": 1024, "heads": 8, "mlp": 2816, "vocab": "digits",
    }  # fmt: skip
    return Spec.model_validate(
        {
            "version": 1,
            "name": "large",
            "modules": {"language": {"model": model, "ranks": "0-1", "grid": {"dp": 2}}},
            "batch": {"global": 2, "seq": 40},
            "data": {"kind": "digits"},
            "train": {"steps": 1},
            "checkpoint": {"every": 1, "asynchronous": asynchronous},
        }
    )


def save_often(spec: Spec, folder: Path) -> tuple[list[CheckpointSaved], float]:
    """Save the same state several times; also time one copy of it within memory."""
    events: list[Any] = []
    with RankSession(Plan.of(spec)) as session:
        state, saver = start_run(session, folder, events.append)
        assert saver is not None
        for _ in range(SAVES):
            state.step += 1
            saver.save(state)
            saver.finish()
        saves = saver.poll()
        tensors = [c.tensor for c in state_boxes(session.modules, session.updates) if c.counted]
        copies = [tensor.clone() for tensor in tensors]
        seconds = []
        for _ in range(SAVES):
            started = time.perf_counter()
            for copy, tensor in zip(copies, tensors, strict=True):
                copy.copy_(tensor)
            seconds.append(time.perf_counter() - started)
    return [e for e in saves if isinstance(e, CheckpointSaved)], median(seconds)


def test_an_asynchronous_save_costs_little_more_than_a_copy(tmp_path: Path) -> None:
    """After the first, which allocates: at most 1.5 copies + 50 ms, and half a synchronous save."""
    found = {}
    for asynchronous in (True, False):
        spec = large(asynchronous=asynchronous)
        ranks = run_ranks(save_often, spec, tmp_path / str(asynchronous), world_size=2)
        saves = [saves for saves, _ in ranks]
        assert min(save.num_bytes for save in saves[0]) > 500e6
        # What the slowest rank waits is what training waits.
        found[asynchronous] = [
            max(save.stall_s for save in step) for step in zip(*saves, strict=True)
        ]
        copy = max(seconds for _, seconds in ranks)
    later, synchronous = found[True][1:], median(found[False])
    print(f"state {saves[0][0].num_bytes / 1e6:.0f} MB, one copy {copy * 1e3:.0f} ms")
    print("asynchronous stalls, ms:", [round(s * 1e3) for s in found[True]])
    print("synchronous saves, ms:", [round(s * 1e3) for s in found[False]])
    assert median(later) <= 1.5 * copy + 0.05
    assert median(later) <= synchronous / 2
