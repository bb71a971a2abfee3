"""The table of kernels: rates between sizes, its form in a file, other devices."""

import json
import math
from typing import Any

import pytest
from tests.support.kernels import flat

from mimo_launch.estimate.device_constants import Calibration, constants_for
from mimo_launch.estimate.kernel_table import KERNELS, Grid, KernelTable, table_of
from mimo_launch.spec.sections import NodesSpec

SQUARE = Grid(((1.0, 4.0), (10.0, 1000.0)), (1.0, 2.0, 3.0, 8.0))


def test_a_measured_size_has_its_rate() -> None:
    assert [SQUARE.at(a, b) for a in (1, 4) for b in (10, 1000)] == pytest.approx([1, 2, 3, 8])


def test_between_sizes_the_logarithms_are_interpolated() -> None:
    assert SQUARE.at(1, 100) == pytest.approx(math.sqrt(2))
    assert SQUARE.at(2, 10) == pytest.approx(math.sqrt(3))
    assert SQUARE.at(2, 100) == pytest.approx((1 * 2 * 3 * 8) ** 0.25)


def test_outside_the_grid_the_nearest_size_counts() -> None:
    assert SQUARE.at(0.01, 10) == pytest.approx(1)
    assert SQUARE.at(100, 1e6) == pytest.approx(8)


def test_seconds_are_work_over_the_rate() -> None:
    table = flat(200.0, 50.0, loss=5.0)
    assert table.seconds("product", 1e15, 3, 4, 5) == pytest.approx(5)
    assert table.seconds("pass", 1e11, 7) == pytest.approx(2)
    assert table.seconds("loss", 1e10, 7) == pytest.approx(2)
    assert table.seconds("product", 0, 3, 4, 5) == 0


def test_heads_between_two_sizes_are_filled_up_to_the_larger() -> None:
    grid = Grid(axes=((1024.0,), (64.0, 80.0, 128.0)), values=(400.0, 300.0, 500.0))
    table = KernelTable(device="", source="", grids={"whole attention forward": grid})
    seconds = [table.seconds("whole attention forward", 1e12 * k, 1024, k) for k in (72, 80, 256)]
    assert seconds[0] == pytest.approx(seconds[1])
    assert seconds[2] == pytest.approx(256 / 500)


def test_a_table_is_read_back_as_it_was_written() -> None:
    shipped = Calibration().kernels
    assert table_of(json.loads(shipped.dumped())) == shipped


def test_the_package_has_a_rate_for_every_kernel() -> None:
    shipped = Calibration().kernels
    assert set(shipped.grids) == set(KERNELS)
    assert shipped.device == Calibration().device
    assert shipped.source


def test_the_rates_of_another_device_are_scaled_and_said_to_be() -> None:
    mine, other = (constants_for(NodesSpec(gpus=8, gpu=gpu)) for gpu in ("h200-141gb", "a100-80gb"))
    assert mine.kernels == Calibration().kernels
    ratios = {
        name: other.kernels.grids[name].values[0] / mine.kernels.grids[name].values[0]
        for name in ("product", "causal attention forward", "pass", "loss")
    }
    compute, memory = 312 / 989, 2039 / 4800
    assert list(ratios.values()) == pytest.approx([compute, compute, memory, memory])
    assert "scaled from NVIDIA H200 by data sheets; not measured" in other.kernels.source
    assert (other.kernels.device, other.kernels.scaled_from) == ("NVIDIA A100 80GB", "NVIDIA H200")
    assert mine.kernels.scaled_from is None


def changed(name: str, **of: Any) -> dict[str, Any]:
    made = flat().as_json()
    made["kernels"][name] = made["kernels"].get(name, {}) | of
    return made


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "a table of kernels is an object with `kernels`, not a list"),
        ({}, "an object with `kernels`"),
        (
            changed("prodct"),
            "the kernel `prodct` is not known here; did you mean `product` or `fp8 product`?",
        ),
        (changed("product", unit="GFLOP/s"), "`product` must be in TFLOP/s"),
        (changed("pass", sizes={"bytes": [1]}), "`pass` must have the sizes megabytes"),
        (changed("pass", rates=[1, 2]), "`pass`: 2 rates for [1]"),
        (changed("pass", rates=[0]), "`pass`: every rate must be a finite number > 0"),
        (changed("pass", rates=["fast"]), "`pass`: could not convert"),
        (changed("pass", sizes={"megabytes": [2, 1]}), "must be positive and increase"),
    ],
)
def test_every_fault_of_a_table_is_named(data: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        table_of(data)
    assert said in str(error.value)
