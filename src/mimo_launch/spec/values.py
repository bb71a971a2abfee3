"""The values that words of a spec name: types of numbers, ways to shard, GPUs and networks.

Decides: types and bytes of each precision; over which axes weights are sharded or replicated; the
numbers of each GPU: docs/estimates.md has the same table with its sources.
Relies on: nothing.
Leaves: the words to `sections` and `module`; torch's types to `models.build`; what work achieves on
a GPU to `estimate.device_constants`.
"""

from typing import Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import Axis

PrecisionName = Literal["fp64", "fp32", "bf16"]
ShardingName = Literal["optimizer", "full"]


@frozen
class NumberType:
    """A type of numbers: its name in torch, and the bytes of a number."""

    torch: str
    bytes: int


@frozen
class Precision:
    """The types in which a run computes.

    `computed` is for activations and gathered weights, `stored` for weights, moments and reductions
    of gradients. `speed` names the device constant for its rate of products relative to bf16; None
    for bf16 itself.
    """

    computed: NumberType
    stored: NumberType
    speed: str | None

    @property
    def is_mixed(self) -> bool:
        """Whether it computes in fewer bits than it stores."""
        return self.computed.bytes < self.stored.bytes

    @property
    def is_exact(self) -> bool:
        """Whether proofs compute in it: nothing is fused for speed."""
        return self.computed.bytes == 8

    def held(self, *, trains: bool, ndim: int) -> NumberType:
        """Return the type in which a rank holds a weight between steps.

        Updates need more bits than products. A matrix that does not train is only ever multiplied;
        vectors are few, and some compute in fp32.
        """
        return self.stored if trains or ndim < 2 else self.computed


_FP64, _FP32, _BF16 = NumberType("float64", 8), NumberType("float32", 4), NumberType("bfloat16", 2)
PRECISIONS: dict[PrecisionName, Precision] = {
    "bf16": Precision(_BF16, _FP32, None),
    "fp32": Precision(_FP32, _FP32, "fp32_speed"),
    "fp64": Precision(_FP64, _FP64, "fp64_speed"),
}


@frozen
class Sharding:
    """How FSDP2 holds a module's weights.

    Each rank along the axes `shard` holds a part of every weight; ranks along `replicate` hold the
    same part. With `every_backward`, weights are gathered and freed in every forward and backward,
    and gradients are reduced in every backward; otherwise once in a step.
    """

    every_backward: bool = False
    shard: tuple[Axis, ...] = (Axis.DP, Axis.CP)
    replicate: tuple[Axis, ...] = ()


SHARDINGS: dict[ShardingName, Sharding] = {
    "optimizer": Sharding(),
    "full": Sharding(every_backward=True),
}


GIB = 2**30


@frozen(kw_only=True)
class Gpu:
    """A GPU as its data sheet describes it: TFLOP/s without sparsity, and GB/s.

    `memory` is in bytes as CUDA reports it, less than the nominal size; `links` sums all NVLinks
    of a GPU, both ways; `host_link` is PCIe to the host, one way. `capability` is its compute
    capability. `devices` are torch's full names of the GPUs with this bf16 peak.
    """

    name: str
    memory: int
    bf16: float
    fp32: float
    fp64: float
    memory_bandwidth: float
    links: float
    host_link: float
    capability: tuple[int, int]
    devices: tuple[str, ...] = ()


GpuName = Literal["h200-141gb", "h100-80gb", "a100-80gb", "a100-40gb", "b200-180gb"]
NetworkName = Literal[
    "ib-100g", "ib-200g", "ib-400g", "ib-800g", "roce-100g", "roce-200g", "roce-400g"
]

GPUS: dict[str, Gpu] = {
    "h200-141gb": Gpu(
        name="NVIDIA H200",
        memory=int(139.7 * GIB),
        bf16=989,
        fp32=67,
        fp64=67,
        memory_bandwidth=4800,
        links=900,
        host_link=64,
        capability=(9, 0),
        devices=("NVIDIA H200",),
    ),
    "h100-80gb": Gpu(
        name="NVIDIA H100 80GB",
        memory=int(79.1 * GIB),
        bf16=989,
        fp32=67,
        fp64=67,
        memory_bandwidth=3350,
        links=900,
        host_link=64,
        capability=(9, 0),
        devices=("NVIDIA H100 80GB HBM3",),
    ),
    "a100-80gb": Gpu(
        name="NVIDIA A100 80GB",
        memory=int(79.1 * GIB),
        bf16=312,
        fp32=19.5,
        fp64=19.5,
        memory_bandwidth=2039,
        links=600,
        host_link=32,
        capability=(8, 0),
        devices=("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
    ),
    "a100-40gb": Gpu(
        name="NVIDIA A100 40GB",
        memory=int(39.3 * GIB),
        bf16=312,
        fp32=19.5,
        fp64=19.5,
        memory_bandwidth=1555,
        links=600,
        host_link=32,
        capability=(8, 0),
        devices=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
    ),
    "b200-180gb": Gpu(
        name="NVIDIA B200",
        memory=int(178.3 * GIB),
        bf16=2250,
        fp32=75,
        fp64=37,
        memory_bandwidth=8000,
        links=1800,
        host_link=64,
        capability=(10, 0),
    ),
}
# Dense bf16 peaks in TFLOP/s, by the full names that torch reports: an H100 NVL or H200 NVL is
# slower than an H100 or H200.
BF16_PEAKS = {device: float(gpu.bf16) for gpu in GPUS.values() for device in gpu.devices}
BF16_PEAKS["NVIDIA H100 PCIe"] = 756.0
# The GPU on which the constants of the estimates were measured.
MEASURED = "h200-141gb"


def network_bandwidth(name: str) -> float:
    """Return the GB/s between hosts, at line rate, with an adapter for each GPU."""
    return float(name.rpartition("-")[2].removesuffix("g")) / 8
