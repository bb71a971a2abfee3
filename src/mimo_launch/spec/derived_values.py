"""Computes the value of a key from a value that another trainer writes in another unit.

Decides: steps from a part of the run or from epochs, microbatches from their size, a rate from a
part of the peak, and so on. If a number that a value needs is missing, there is no value.
Relies on: the data of a spec, not yet validated.
Leaves: the words for these values to `foreign_words`.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any

from mimo_launch.diag.diagnostic import YamlPath
from mimo_launch.spec.base import AXES, LANGUAGE, Strict
from mimo_launch.spec.data import DigitsData, SyntheticData
from mimo_launch.spec.fields import value_at
from mimo_launch.spec.optimizers import OptimizerSpec

# Takes their value, the data of the spec and the path of our key; returns our value or None.
Derive = Callable[[Any, Any, YamlPath], Any]
_MOST = 2**31


def _number(value: Any) -> Fraction | None:
    """Return the exact value of a positive number or its text, such as `3%`; None for others."""
    text, percent = str(value).strip().removesuffix("%"), str(value).strip().endswith("%")
    try:
        number = Fraction(text) if len(text) < 40 and "/" not in text else Fraction(0)
    except ValueError:
        return None
    return number / (100 if percent else 1) if 0 < number < _MOST else None


def _count(path: tuple[str, ...], data: Any) -> int | None:
    """Return the positive whole number at a path of the spec, or None."""
    value = value_at(path, data)
    return value if type(value) is int and value > 0 else None


def _size(axis: str, data: Any) -> int | None:
    """Return a size of the grid of language; None if it is open or the grid is wrong."""
    grid = value_at(("modules", LANGUAGE, "grid"), data) or {}
    size = grid.get(axis, 1) if isinstance(grid, dict) and set(grid) <= set(AXES) else None
    return size if type(size) is int and size > 0 else None


def percent_of_ratio(ratio: Any, _: Any = None, __: YamlPath = ()) -> str | None:
    """Return a part of the run as a percentage."""
    part = _number(ratio)
    return f"{float(100 * part):.9f}".rstrip("0").rstrip(".") + "%" if part and part <= 1 else None


def steps_of_ratio(ratio: Any, data: Any, _: YamlPath = ()) -> int | None:
    """Return the number of steps in a part of the run, at least one."""
    part, steps = _number(ratio), _count(("train", "steps"), data)
    return ceil(part * steps) if part is not None and part <= 1 and steps else None


def steps_of_epochs(epochs: Any, data: Any, _: YamlPath = ()) -> int | None:
    """Return the steps of some epochs; None if the spec does not say the number of samples."""
    number, batch = _number(epochs), _count(("batch", "global"), data)
    source = value_at(("data",), data)
    if not isinstance(source, dict):
        return None
    kinds: dict[Any, type[Strict]] = {"digits": DigitsData, "synthetic": SyntheticData}
    kind = kinds.get(source.get("kind"))
    if number is None or batch is None or kind is None or source.get("packing"):
        return None
    samples = source.get("samples", kind.model_fields["samples"].default)
    return ceil(number * samples / batch) if type(samples) is int and samples > 0 else None


def microbatches_of_size(size: Any, data: Any, _: YamlPath = ()) -> int | None:
    """Return the number of microbatches of this size; None if it is not whole."""
    samples, dp = _count(("batch", "global"), data), _size("dp", data)
    if type(size) is not int or size < 1 or not samples or not dp or samples % (dp * size):
        return None
    return samples // (dp * size)


def first_count(words: Iterable[str], data: Any) -> int | None:
    """Return the positive number that one of some keys has, in any section; None without any."""
    top = data if isinstance(data, dict) else {}
    sections = [top, *(each for each in top.values() if isinstance(each, dict))]
    found = [each[word] for each in sections for word in words if word in each]
    return found[0] if found and type(found[0]) is int and found[0] > 0 else None


def samples_of_accumulation(number: int, size: Any, data: Any, _: YamlPath = ()) -> int | None:
    """Return the samples of a step: size of a microbatch x `number` of microbatches x dp."""
    dp = _size("dp", data)
    return size * number * dp if type(size) is int and size > 0 and dp else None


def min_lr_of_ratio(ratio: Any, data: Any, _: YamlPath = ()) -> float | None:
    """Return the learning rate for a part of the peak."""
    part, peak = _number(ratio), _number(value_at(("optimizer", "lr"), data))
    return float(part * peak) if part is not None and part <= 1 and peak is not None else None


def steps_of_samples(samples: Any, data: Any, _: YamlPath = ()) -> int | None:
    """Return the steps that some samples take."""
    batch = _count(("batch", "global"), data)
    return ceil(samples / batch) if type(samples) is int and samples > 0 and batch else None


def samples_of_batches(batches: Any, data: Any, _: YamlPath = ()) -> int | None:
    """Return the samples in some global batches."""
    batch = _count(("batch", "global"), data)
    return batches * batch if type(batches) is int and batches > 0 and batch else None


def stages_of_layers(layers: Any, data: Any, _: YamlPath = ()) -> int | None:
    """Return the number of stages on each rank of language, given the layers of a stage."""
    total, pp = _count(("modules", LANGUAGE, "model", "layers"), data), _size("pp", data)
    if type(layers) is not int or layers < 1 or not total or not pp or total % (pp * layers):
        return None
    return total // (pp * layers)


def seconds_of_minutes(minutes: Any, _: Any, __: YamlPath = ()) -> int | None:
    """Return the seconds of some minutes."""
    number = _number(minutes)
    return None if number is None else ceil(60 * number)


def patches_of_pixels(sides: Any, data: Any, path: YamlPath) -> list[int] | None:
    """Return the grid of patches of an image with these sides, by the `patch` of its model."""
    patch = value_at((*path[:-1], "patch"), data)
    pixels = sides if isinstance(sides, list) and len(sides) == 2 else [sides, sides]
    if not all(type(each) is int and each > 0 for each in (*pixels, patch)):
        return None
    return None if any(side % patch for side in pixels) else [side // patch for side in pixels]


def _beta_of(place: int, beta: Any, data: Any, _: YamlPath = ()) -> list[Any]:
    """Return both betas: the given one, and the other as written under any name, or its default."""
    section = value_at(("optimizer",), data)
    written = section if isinstance(section, dict) else {}
    betas = written.get("betas")
    default = OptimizerSpec.model_fields["betas"].default
    pair = list(betas if isinstance(betas, list) and len(betas) == 2 else default)
    for other in (0, 1):
        for word in (f"beta{other + 1}", f"adam_beta{other + 1}"):
            pair[other] = written.get(word, pair[other])
    pair[place] = beta
    return pair


beta1_of: Derive = partial(_beta_of, 0)
beta2_of: Derive = partial(_beta_of, 1)
