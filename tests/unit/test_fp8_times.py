"""Estimated kernels of linear layers in 8 bits, and what they took on an H200.

Printed by `python -m tests.gpu.fp8_times` on 2026-11-29, with 8,192 tokens, torch 2.11 and
Transformer Engine 2.20.2: TFLOP/s of products and microseconds of casts, forward and backward.
"""

from dataclasses import replace

import pytest

from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.fp8_times import fp8_seconds
from mimo_launch.spec.fp8 import SCALINGS, ScalingName

TOKENS = 8192
MEASURED: dict[tuple[int, int], dict[ScalingName, tuple[tuple[int, int], tuple[int, int]]]] = {
    (4096, 6144): {
        "delayed": ((1513, 68), (1469, 55)),
        "current": ((1527, 101), (1466, 81)),
        "blockwise": ((1320, 84), (1183, 78)),
    },
    (4096, 28672): {
        "delayed": ((1462, 168), (1460, 255)),
        "current": ((1371, 248), (1475, 367)),
        "blockwise": ((1294, 184), (1087, 403)),
    },
    (14336, 4096): {
        "delayed": ((1536, 196), (1424, 37)),
        "current": ((1538, 285), (1428, 56)),
        "blockwise": ((1325, 243), (1178, 56)),
    },
}
# Each kernel was run ten times, too short to warm up the GPU.
COOL = replace(Calibration(), sustained=1.0)


def took(size: tuple[int, int], scaling: ScalingName) -> tuple[float, float]:
    """Return the measured seconds of a forward and of a backward, which has two products."""
    flops = 2 * TOKENS * size[0] * size[1]
    forward, backward = (
        number * flops / rate / 1e12 + casts / 1e6
        for number, (rate, casts) in enumerate(MEASURED[size][scaling], 1)
    )
    return forward, backward


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("size", MEASURED)
def test_linear_layers_take_as_long_as_measured(
    size: tuple[int, int], scaling: ScalingName
) -> None:
    forward, *backward = fp8_seconds(COOL, SCALINGS[scaling], TOKENS, *size)
    assert (forward, sum(backward)) == pytest.approx(took(size, scaling), rel=0.08)


@pytest.mark.parametrize("size", MEASURED)
def test_scalings_rank_as_measured(size: tuple[int, int]) -> None:
    by_estimate = sorted(
        SCALINGS, key=lambda name: sum(fp8_seconds(COOL, SCALINGS[name], TOKENS, *size))
    )
    assert by_estimate == sorted(SCALINGS, key=lambda name: sum(took(size, name)))
    assert by_estimate == ["delayed", "current", "blockwise"]
