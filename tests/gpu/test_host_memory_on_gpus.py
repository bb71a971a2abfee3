"""Moments in the memory of the host: the same updates as with moments on the GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mimo_launch.optimizer.adamw import LocalAdamW
from mimo_launch.spec.optimizers import OptimizerSpec

pytestmark = pytest.mark.gpu


def updated(device: str) -> list[bool]:
    """Return whether weights and moments are equal after five updates, one of them skipped."""
    torch.manual_seed(0)
    sizes = [(300, 7), (64,), (1000, 33)]
    given = [torch.randn(size, device=device) for size in sizes]
    runs = []
    for on_host in (False, True):
        weights = [each.clone().requires_grad_() for each in given]
        groups = [{"params": [each], "weight_decay": 0.1} for each in weights]
        optimizer: Any = LocalAdamW(groups, OptimizerSpec.model_validate({}))
        optimizer.on_host = on_host
        for step in range(5):
            torch.manual_seed(step)
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            optimizer.found_inf = torch.full((), float(step == 2), device=device)
            optimizer.grad_scale = torch.full((), 2.0, device=device)
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        moments = [optimizer.state[each][name] for each in weights for name in ("exp_avg",)]
        assert not on_host or all(not each.is_cuda for each in moments)
        runs.append([each.detach().cpu() for each in (*weights, *moments)])
    return [torch.equal(one, other) for one, other in zip(*runs, strict=True)]


def test_moments_on_the_host_give_the_same_updates(run_on: Callable[..., Any], device: str) -> None:
    (equal,) = run_on(1, updated, device)
    assert all(equal)
