"""Rates of the kernels of one device by the sizes of their work, measured at a grid of sizes.

Decides: the form of a table in a file; rates between two measured sizes, in the logarithms of both;
a size outside the grid has the rate of the nearest one inside; how a table of one device is scaled
to another by their data sheets.
Relies on: nothing.
Leaves: measuring to `bench.measure_kernels`, the kernels that a layer needs to `kernel_times`.

Every kernel, its sizes and its unit are in `KERNELS`.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.near_words import did_you_mean
from mimo_launch.spec.wording import found

_PRODUCT = ("rows", "inputs", "outputs")
_ATTENTION = ("length", "head size")
COMPUTE, BYTES, WORDS, SECONDS = "TFLOP/s", "GB/s", "Gword/s", "s"
MASKS = ("causal", "whole", "documents", "images", "masked")


def _both_ways(name: str, sizes: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], str]]:
    return {f"{name} {way}": (sizes, COMPUTE) for way in ("forward", "backward")}


# The sizes that the rate of a kernel depends on, and its unit. A product multiplies rows by a
# matrix; its backward makes the gradient of `inputs`, and that of `weights` in fp32. A grouped
# product has so many rows for each of several matrices. Attention is counted as in
# docs/estimates.md: causal or over whole sequences, over lists of documents or of images, or with a
# mask in memory, measured with queries that are a part of the sequence. A recurrence is counted
# without its projections, and so is the convolution before it, over so many numbers; twice as many
# in its backward. A `pass` reads and writes tensors of so many MB. The loss goes over so many
# logits. The host starts one pass of a layer, or compiles its kernels.
KERNELS: dict[str, tuple[tuple[str, ...], str]] = {
    "product": (_PRODUCT, COMPUTE),
    "product, gradient of inputs": (_PRODUCT, COMPUTE),
    "product, gradient of weights": (_PRODUCT, COMPUTE),
    "fp8 product": (_PRODUCT, COMPUTE),
    "fp8 product, gradients": (_PRODUCT, COMPUTE),
    **_both_ways("grouped product", _PRODUCT),
    **{
        name: facts
        for mask in MASKS
        for name, facts in _both_ways(f"{mask} attention", _ATTENTION).items()
    },
    **_both_ways("mamba", ("tokens",)),
    **_both_ways("deltanet", ("tokens",)),
    "convolution forward": (("tokens",), WORDS),
    "convolution backward": (("tokens",), WORDS),
    "pass": (("megabytes",), BYTES),
    "loss": (("million logits",), WORDS),
}


@frozen
class Grid:
    """Rates at all combinations of some sizes; `values` are in the order of the last axis first.

    Raises: ValueError if an axis does not increase, or a rate is missing or not positive.
    """

    axes: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]
    # The layouts of a search ask for the same sizes again and again.
    _known: dict[tuple[float, ...], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Check sizes and rates. Raises: ValueError."""
        for axis in self.axes:
            if not axis or axis[0] <= 0 or list(axis) != sorted(set(axis)):
                raise ValueError(f"sizes must be positive and increase, not {list(axis)}")
        if len(self.values) != math.prod(map(len, self.axes)):
            raise ValueError(f"{len(self.values)} rates for {[len(axis) for axis in self.axes]}")
        # Also rejects NaN.
        if not all(0 < value < math.inf for value in self.values):
            raise ValueError("every rate must be a finite number > 0")

    def at(self, *sizes: float) -> float:
        """Return the rate at some sizes, one for each axis."""
        if sizes not in self._known:
            self._known[sizes] = self._between(sizes)
        return self._known[sizes]

    def _between(self, sizes: tuple[float, ...]) -> float:
        corners, total = [(1.0, 0)], 0.0
        for axis, size in zip(self.axes, sizes, strict=True):
            (first, part), number = _place(axis, size), len(axis)
            both = ((1 - part, first), (part, first + 1)) if part else ((1.0, first),)
            corners = [
                (share * more, index * number + place)
                for share, index in corners
                for more, place in both
            ]
        for share, index in corners:
            total += share * math.log(self.values[index])
        return math.exp(total)


def _place(axis: tuple[float, ...], size: float) -> tuple[int, float]:
    """Return the last measured size up to this one, and how far it is to the next, 0 to 1."""
    inside = min(max(size, axis[0]), axis[-1])
    first = bisect_right(axis, inside) - 1
    if first == len(axis) - 1:
        return first, 0.0
    return first, math.log(inside / axis[first]) / math.log(axis[first + 1] / axis[first])


@frozen(kw_only=True)
class KernelTable:
    """The rates of a device; `source` says how they came about, for readers.

    `scaled_from` is the device that was measured, if that is another one.
    """

    device: str
    source: str
    grids: Mapping[str, Grid]
    scaled_from: str | None = None

    def seconds(self, kernel: str, amount: float, *sizes: float) -> float:
        """Return the seconds of an amount of work (FLOPs, bytes, logits) at some sizes.

        Kernels of attention fill heads up to a size that they have; here, to the next measured one.
        """
        if not amount:
            return 0.0
        grid, scale = self.grids[kernel], 1e12 if KERNELS[kernel][1] == COMPUTE else 1e9
        if KERNELS[kernel][0] == _ATTENTION:
            length, head = sizes
            filled = next((size for size in grid.axes[1] if size >= head), head)
            amount, sizes = amount * filled / head, (length, filled)
        return amount / scale / grid.at(*sizes)

    def scaled(self, device: str, *, compute: float, memory: float) -> "KernelTable":
        """Return the table of a device with other peaks: rates are multiplied by these factors."""
        factors = {COMPUTE: compute, BYTES: memory, WORDS: memory}
        grids = {
            name: replace(grid, values=tuple(factors[KERNELS[name][1]] * v for v in grid.values))
            for name, grid in self.grids.items()
        }
        source = f"{self.source}, scaled from {self.device} by data sheets; not measured"
        return KernelTable(
            device=device, source=source, grids=grids, scaled_from=self.scaled_from or self.device
        )

    def over(self, other: "KernelTable") -> "KernelTable":
        """Return this table, with the kernels of `other` that it lacks."""
        return replace(self, grids={**other.grids, **self.grids})

    def as_json(self) -> dict[str, Any]:
        """Return the table as `table_of` reads it."""
        kernels = {
            name: {
                "unit": KERNELS[name][1],
                "sizes": dict(zip(KERNELS[name][0], map(list, grid.axes), strict=True)),
                "rates": [float(f"{value:.4g}") for value in grid.values],
            }
            for name, grid in self.grids.items()
        }
        return {"device": self.device, "source": self.source, "kernels": kernels}

    def dumped(self) -> str:
        """Return the table as JSON, with one line for each kernel."""
        table = self.as_json()
        kernels = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table.pop("kernels").items()]
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in table.items()]
        return "{" + ",\n".join([*lines, '"kernels": {\n' + ",\n".join(kernels) + "\n}"]) + "}"


def table_of(data: Any) -> KernelTable:
    """Return the table in a JSON value. Raises: ValueError if it holds anything unknown."""
    if not isinstance(data, dict) or not isinstance(data.get("kernels"), dict):
        raise ValueError(f"a table of kernels is an object with `kernels`, not {found(data)}")
    grids = {}
    for name, each in data["kernels"].items():
        if name not in KERNELS:
            guess = did_you_mean(name, KERNELS) or f"known are {', '.join(KERNELS)}"
            raise ValueError(f"the kernel `{name}` is not known here; {guess}")
        sizes, unit = KERNELS[name]
        if not isinstance(each, dict) or each.get("unit") != unit:
            raise ValueError(f"`{name}` must be in {unit}")
        if not isinstance(each.get("sizes"), dict) or tuple(each["sizes"]) != sizes:
            raise ValueError(f"`{name}` must have the sizes {', '.join(sizes)}")
        try:
            axes = tuple(tuple(map(float, axis)) for axis in each["sizes"].values())
            grids[name] = Grid(axes, tuple(map(float, each.get("rates", ()))))
        except (TypeError, ValueError) as error:
            raise ValueError(f"`{name}`: {error}") from None
    return KernelTable(
        device=str(data.get("device", "")), source=str(data.get("source", "")), grids=grids
    )
