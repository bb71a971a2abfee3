"""Which tensors the kernels of the delta rule get, and with which packages."""

import pytest
import torch

from mimo_launch.diag import installed
from mimo_launch.layers import delta_rule_kernels as kernels

BEFORE, BROKEN, REPAIRED = "3.3.1", "3.6.0", "3.7.1"
HOPPER, AMPERE = (9, 0), (8, 0)


@pytest.mark.parametrize(
    ("packages", "triton", "capability", "usable"),
    [
        ((), REPAIRED, HOPPER, False),
        (("fla",), BEFORE, HOPPER, True),
        (("fla",), BROKEN, HOPPER, False),
        (("fla", "tilelang"), BROKEN, HOPPER, True),
        (("fla",), REPAIRED, HOPPER, True),
        (("fla",), BROKEN, AMPERE, True),
    ],
)
def test_kernels_that_would_be_wrong_are_not_used(
    packages: tuple[str, ...],
    triton: str,
    capability: tuple[int, int],
    usable: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installed, "is_installed", lambda name: name in packages)
    monkeypatch.setattr(installed, "version", lambda name: triton)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    kernels.are_usable.cache_clear()
    assert kernels.are_usable(torch.device("cuda", 0)) is usable
    kernels.are_usable.cache_clear()


def test_the_chunks_of_documents_are_those_of_each() -> None:
    """Documents of 70, 64 and 1 tokens have two chunks, one, and one."""
    found = kernels._chunks((70, 64, 1), torch.device("cpu"))
    assert found.tolist() == [[0, 0], [0, 1], [1, 0], [2, 0]]
