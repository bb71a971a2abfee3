"""Matrix products in 8 bits: their keys, and what each way to scale their factors needs and keeps.

Decides: the scalings there are, and the facts in which they differ.
Relies on: Transformer Engine 2.20 and its user guide (low precision training). `blockwise` is the
recipe of DeepSeek-V3 (arXiv:2412.19437, section 3.3): tiles of 1 x 128 for activations and
gradients, blocks of 128 x 128 for weights. Rates and times: `python -m tests.gpu.fp8_times` on one
H200 (docs/performance.md).
Leaves: the package's names of them to `layers.te_fp8`; which sizes fit to `checks.eight_bits`.
"""

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import Count, Strict

ScalingName = Literal["delayed", "current", "blockwise"]
FormatName = Literal["hybrid", "e4m3"]


@frozen(kw_only=True)
class Scaling:
    """One way to scale the factors of products in 8 bits.

    `step`: every size of a product on a rank is a multiple of it. `capability` is the compute
    capability of the first GPUs that can do it, and `gpus` are their generations. `format` holds
    unless a spec chooses another. `keeps_history`: scales are state, which follows from the
    magnitudes of earlier steps. `rates`: of the product of a forward and of those for gradients;
    `cast_times`: of what depends on tokens and of weights. Both are relative to `delayed`.
    """

    step: int = 16
    capability: tuple[int, int] = (8, 9)
    gpus: str = "Ada, Hopper"
    format: FormatName = "hybrid"
    keeps_history: bool = False
    rates: tuple[float, float] = (1.0, 1.0)
    cast_times: tuple[float, float] = (1.0, 1.0)


SCALINGS: dict[ScalingName, Scaling] = {
    "delayed": Scaling(keeps_history=True),
    # The largest magnitude of a tensor is found in a pass that reads it: 6 bytes a number in place
    # of 4, and measured 1.44 to 1.51.
    "current": Scaling(cast_times=(1.5, 1.5)),
    "blockwise": Scaling(
        step=128,
        capability=(9, 0),
        gpus="Hopper",
        format="e4m3",
        rates=(0.87, 0.79),
        cast_times=(1.5, 1.0),
    ),
}


def scaling_for(size: int) -> ScalingName | None:
    """Return the finest scaling whose products can have this size, and multiples, or None."""
    return _finest(lambda each: size % each.step == 0)


def scaling_on(capability: tuple[int, int]) -> ScalingName | None:
    """Return the finest scaling that GPUs of this compute capability can do, or None."""
    return _finest(lambda each: each.capability <= capability)


def _finest(suits: Callable[[Scaling], bool]) -> ScalingName | None:
    return next((name for name, each in reversed(SCALINGS.items()) if suits(each)), None)


class Fp8Spec(Strict):
    """Matrix products of a module's blocks in 8 bits."""

    scaling: ScalingName = Field(
        "delayed",
        description="`delayed`: scales follow from the largest magnitudes of earlier steps. "
        "`current`: from those of the tensor itself, which takes one more pass over it. "
        "`blockwise`: a scale for each 128 numbers of activations and gradients, and for each "
        "block of 128 x 128 of weights (DeepSeek-V3).",
    )
    format: FormatName | None = Field(
        None,
        description="`e4m3`: three bits of mantissa for all tensors. `hybrid`: for gradients two, "
        "and a wider range (e5m2). Default: `hybrid`, or `e4m3` with `blockwise`.",
    )
    amax_history: Count = Field(
        1024,
        description="With `delayed`: a scale follows from the largest values of this many steps.",
    )

    @property
    def rule(self) -> Scaling:
        """What its scaling needs and keeps."""
        return SCALINGS[self.scaling]

    @property
    def numbers(self) -> FormatName:
        """The format that was chosen, or that of the scaling."""
        return self.format or self.rule.format
