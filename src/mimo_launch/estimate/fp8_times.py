"""Seconds of the products of a linear layer in 8 bits, and of the casts of their factors.

Decides: which factors are cast, and when.
Relies on: the rates of products with one scale per tensor and of passes over memory, and `spec.fp8`
for how each scaling differs from them.
Leaves: which products a layer has to `kernel_times`.
"""

from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.spec.fp8 import Scaling

# A cast to 8 bits reads a number of 16, and writes it in two orders.
_CAST = 2 + 1 + 1
_MEGA = 1e6


def fp8_seconds(
    constants: Calibration, rule: Scaling, tokens: int, inputs: int, outputs: int
) -> tuple[float, float, float]:
    """Return the seconds of a forward, of the gradient of the input, and of that of the weight.

    The casts of the input and of the weight are in the first, that of the gradient in the second.
    """
    flops = 2.0 * tokens * inputs * outputs
    forward, gradient = (
        constants.seconds_of(name, flops, tokens, inputs, outputs) / rate
        for name, rate in zip(("fp8 product", "fp8 product, gradients"), rule.rates, strict=True)
    )
    of_tokens, of_weights = rule.cast_times
    given, made = tokens * inputs, tokens * outputs
    first = _cast(constants, of_tokens * given + of_weights * inputs * outputs, given)
    return forward + first, gradient + _cast(constants, of_tokens * made, made), gradient


def _cast(constants: Calibration, numbers: float, tensor: int) -> float:
    """Return the seconds to cast so many numbers, in tensors of so many."""
    return constants.seconds_of("pass", _CAST * numbers, max(1.0, 2.0 * tensor) / _MEGA)
