"""Measuring the kernels of a device, here a processor at tiny sizes."""

import time

import pytest
import torch

from mimo_launch.bench import measure_kernels
from mimo_launch.bench.measure_kernels import CPU, measured_table, sustained
from mimo_launch.estimate.kernel_table import KERNELS, KernelTable

# What only GPUs have: products in 8 bits, attention over lists.
ON_GPUS = {name for name in KERNELS if name.startswith(("fp8", "documents", "images"))}


@pytest.fixture(scope="module")
def beats() -> list[float]:
    return []


@pytest.fixture(scope="module")
def table(beats: list[float]) -> KernelTable:
    device = torch.device("cpu")
    return measured_table(device, "a processor", "2026-01-01", lambda: beats.append(0))


def test_every_kernel_that_the_device_has_is_measured_at_every_size(
    table: KernelTable, beats: list[float]
) -> None:
    assert set(table.grids) == KERNELS.keys() - ON_GPUS
    assert table.grids["product"].axes == (CPU.rows, CPU.widths, CPU.widths)
    assert table.grids["masked attention backward"].axes == (CPU.lengths, CPU.head_sizes)
    assert len(beats) == sum(len(grid.values) for grid in table.grids.values())


def test_it_says_what_was_measured_and_when(table: KernelTable) -> None:
    assert table.device == "a processor"
    assert table.source == f"measured on 2026-01-01 with torch {torch.__version__}"


def test_larger_products_are_faster(table: KernelTable) -> None:
    small, large = (table.grids["product"].at(size, size, size) for size in (32, 256))
    assert large > small


def test_a_call_is_repeated_for_the_wanted_time() -> None:
    calls: list[float] = []

    def run() -> None:
        calls.append(time.perf_counter())
        time.sleep(0.002)

    # A busy machine sleeps longer.
    assert 0.002 <= sustained(run, torch.device("cpu"), 0.02) < 0.1
    assert 3 <= len(calls) - 2 <= 10


def test_a_kernel_that_fails_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object, **more: object) -> None:
        raise RuntimeError("no kernel for these sizes\nand more")

    monkeypatch.setattr(measure_kernels, "grouped_linear", fails)
    made = measured_table(torch.device("cpu"), "", "today", lambda: None)
    assert "product" in made.grids
    assert "grouped product forward" not in made.grids
    assert made.source.endswith("8 measurements failed, the first with: no kernel for these sizes")
