"""One rank on a CUDA device computes what one rank on the processor computes."""

import os
from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.spec.model import Spec

pytestmark = pytest.mark.gpu


def gradients_on(device_name: str, made: Spec) -> tuple[float, dict[str, Any]]:
    """Return loss and gradients of one step on a device, in a process of its own."""
    import torch
    import torch.distributed as dist

    from mimo_launch.parallel.local import local_tensor
    from mimo_launch.train.data.dataset import build_dataset
    from mimo_launch.train.loader import step_inputs
    from mimo_launch.train.session import RankSession

    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29531")
    dist.init_process_group("nccl" if device_name == "cuda" else "gloo")
    inputs = step_inputs(build_dataset(made), "train", tuple(range(made.batch.global_)), 0)
    with RankSession(made, device=torch.device(device_name), randomise=True) as session:
        totals = session.gradients(inputs).read()
        found = {
            placed.name: local_tensor(declared.parameter.grad)[placed.first_row : placed.last_row]
            .cpu()
            .numpy()
            for name in session.modules
            for declared in session.declared(name)
            for placed in declared.placed
        }
    return totals.loss, found


def in_process(device_name: str, made: Spec) -> tuple[float, dict[str, Any]]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # CUDA does not survive a fork.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(gradients_on, device_name, made).result(timeout=300)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-10), ("fp32", 1e-3)])
def test_a_step_on_cuda_equals_the_step_on_the_processor(precision: str, tolerance: float) -> None:
    import numpy as np

    made = spec(
        {"vision": box(0), "language": box(0, model={"qk_norm": True, "layers": 2})},
        microbatches=2,
        mbs=2,
        train={"precision": precision},
    )
    loss, found = in_process("cuda", made)
    want_loss, want = in_process("cpu", made)
    assert loss == pytest.approx(want_loss, rel=tolerance)
    scale = max(float(np.linalg.norm(grad)) for grad in want.values())
    for name, grad in want.items():
        error = float(np.linalg.norm(found[name] - grad))
        assert error <= tolerance * max(float(np.linalg.norm(grad)), 1e-3 * scale), name
