"""The operations of a whole step with its own samples, and the share of the peak that they reach.

Decides: that the FLOPs of a step are those of its own images and records, padding included, and
without recomputation; which GPUs have a known peak.
Relies on: `workload` for the operations of a stage; `device_constants`.
Leaves: measuring the seconds to `train` and `bench`, which both count by these functions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.workload import (
    backward_flops,
    encoder_workload,
    forward_flops,
    language_spans,
)
from mimo_launch.kinds.layer import Workload
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import EncoderView
from mimo_launch.spec.spec import Spec

# Dense bf16 peaks of NVIDIA's data sheets, in TFLOP/s, by the full names that torch reports: an
# H100 NVL or H200 NVL is slower than an H100 or H200.
BF16_PEAKS = {
    "NVIDIA H200": 989.0,
    "NVIDIA H100 80GB HBM3": 989.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100 80GB PCIe": 312.0,
    "NVIDIA A100-PCIE-40GB": 312.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The TFLOP of each module in a step, TFLOP/s per rank, and its share of the device's peak."""

    tflop: dict[str, float]
    tflops_per_rank: float
    mfu: float | None


def step_flops(spec: Spec, layout: Layout, data: StepData) -> dict[str, float]:
    """Return the FLOPs of one step by module: forward and backward, without recomputation."""
    flops = {}
    for module in layout.modules:
        work, total = _work(layout, data, module), 0.0
        for stage in module.stages:
            forward = forward_flops(spec, stage, work)
            total += forward.total + backward_flops(spec, layout, module, stage, forward).total
        flops[module.name] = total
    return flops


def _work(layout: Layout, data: StepData, module: ModuleLayout) -> Workload:
    """Return the whole step as if it were one forward: the FLOPs of its samples add up."""
    if module.is_language:
        spans = tuple(n for s in data.samples for n in language_spans(s, layout.seq))
        return Workload(spans=spans, held=sum(spans), rows=0, forwards=1)
    view = EncoderView(module, data, 0, tuple(range(len(data.samples))))
    return encoder_workload(view, times=1, forwards=1)


def peak_tflops(device: str, precision: str, constants: Calibration | None = None) -> float | None:
    """Return the peak of a device in TFLOP/s, or None if it is not known, as that of a CPU.

    `constants` count for their own device, in every precision.
    """
    constants = constants or Calibration()
    if device == constants.device:
        speeds = {"bf16": 1.0, "fp32": constants.fp32_speed, "fp64": constants.fp64_speed}
        return constants.peak * speeds[precision]
    return BF16_PEAKS.get(device) if precision == "bf16" else None


def rate_of(
    flops: Mapping[str, float], seconds: float, world_size: int, peak: float | None
) -> Rate:
    """Return the rate of a step with these FLOPs by module; `peak` is of one rank's device."""
    tflop = {name: each / 1e12 for name, each in flops.items()}
    tflops = sum(tflop.values()) / seconds / world_size
    return Rate(tflop=tflop, tflops_per_rank=tflops, mfu=None if peak is None else tflops / peak)
