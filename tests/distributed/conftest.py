"""Imports, before ranks are forked, what each of them would otherwise import for seconds."""

import pytest
import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.utils.serialization.config

import mimo_launch.bench.profiling
import mimo_launch.optimizer.adamw
import mimo_launch.train.plan_watch  # noqa: F401 - a tenth of a second in each new rank
from mimo_launch.train import step

torch.set_num_threads(1)


@pytest.fixture(
    params=[
        pytest.param(0, marks=pytest.mark.sweep, id="read at once"),  # As most other tests do.
        pytest.param(1, id="read late"),
    ]
)
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Numbers of a step are read at once, as on the processor, or one step late, as on CUDA."""
    monkeypatch.setattr(step, "steps_late", lambda device: request.param)
    return request.param
