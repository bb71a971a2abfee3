"""What two words of a spec mean: how a precision stores numbers, how a sharding cuts weights.

Decides: types and bytes of each precision; over which axes weights are sharded or replicated.
Relies on: nothing.
Leaves: the words themselves to `sections` and `module`; torch's types to `models.build`.
"""

from dataclasses import dataclass
from typing import Literal

from mimo_launch.spec.base import Axis

PrecisionName = Literal["fp64", "fp32", "bf16"]
ShardingName = Literal["optimizer", "full"]


@dataclass(frozen=True, slots=True)
class NumberType:
    """A type of numbers: its name in torch, and the bytes of a number."""

    torch: str
    bytes: int


@dataclass(frozen=True, slots=True)
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


_FP64, _FP32, _BF16 = NumberType("float64", 8), NumberType("float32", 4), NumberType("bfloat16", 2)
PRECISIONS: dict[PrecisionName, Precision] = {
    "bf16": Precision(_BF16, _FP32, None),
    "fp32": Precision(_FP32, _FP32, "fp32_speed"),
    "fp64": Precision(_FP64, _FP64, "fp64_speed"),
}


@dataclass(frozen=True, slots=True)
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
