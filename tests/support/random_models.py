"""Models of `transformers` in which every weight has a value of its own."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

# The bounds of maps that clip their numbers.
_LOWER, _UPPER = ("input_min", "output_min"), ("input_max", "output_max")
_XIELU = ("act_fn.beta", "act_fn.eps")


def theirs() -> Any:
    """Return `transformers`, which warns as it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
    return transformers


def of_norm(name: str) -> float:
    """Return 1 for the weight of a norm, and for numbers that multiply: near it they begin.

    Bounds are near -1 and 1, so that maps clip some of their numbers.
    """
    if name.endswith(_LOWER):
        return -1.0
    of_norm = "norm" in name and name.endswith("weight")
    return float(of_norm or name.endswith((*_UPPER, "layer_scalar", "std_scale")))


def shaken(
    model: Any,
    dtype: torch.dtype,
    start: Callable[[str], float] = of_norm,
    scale: Callable[[str], float] = lambda name: 0.2,
) -> Any:
    """Give each weight, and each bias of a router, random values of a scale around a start."""
    model = model.to(dtype).eval()
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        biases = [each for each in model.named_buffers() if each[0].endswith("correction_bias")]
        for _, bias in biases:
            # As transformers keeps it.
            bias.data = bias.to(torch.promote_types(dtype, torch.float32))
        # Numbers of a layer, of rows or of a map, which do not train.
        numbers = ("layer_scalar", "std_bias", "std_scale", *_XIELU, *_LOWER, *_UPPER)
        scalars = [each for each in model.named_buffers() if each[0].endswith(numbers)]
        for name, weight in (*model.named_parameters(), *biases, *scalars):
            noise = torch.randn(weight.shape, generator=random, dtype=torch.float64)
            weight.copy_(noise * scale(name) + start(name))
    return model
