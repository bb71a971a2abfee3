"""Says the seed; imports, before ranks are forked, what each would otherwise import for seconds."""

import pytest
import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
from tests.support.sweeps import SEED

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def seed_of_the_run() -> None:
    """Print what repeats a run that has failed."""
    print(f"\nSWEEP_SEED={SEED} repeats this run")
