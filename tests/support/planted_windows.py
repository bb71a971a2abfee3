"""Known ways to get windows of images wrong; `planted` lists them with the others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tests.support.specs import box, spec

from mimo_launch.layers import image_contexts
from mimo_launch.layers.image_contexts import ImageContext, listed_context
from mimo_launch.models import stage_interface
from mimo_launch.spec.spec import Spec

# The middle layer attends to whole images.
MODEL: dict[str, Any] = {
    "layers": 3, "positions": "rope2d", "windows": {"side": 2, "full": [1]}, "norm": "rms",
    "activation": "swiglu", "patch_bias": False, "norm_eps": 0.01, "shuffle": 2,
    "projector": "merger",
}  # fmt: skip


def windowed(**grid: int) -> Spec:
    """Two images a sample, most of several windows, in front of language on one rank."""
    return spec(
        {"vision": box(0, model=MODEL, **grid), "language": box(2)},
        mbs=2,
        max_images=2,
        max_patches=24,
    )


def windows_ignored() -> None:
    """Every layer attends to whole images."""
    from mimo_launch.kinds.facts import Attending

    Attending.in_windows = lambda self, number: False  # type: ignore[method-assign]


def windows_shared_by_images() -> None:
    """Windows are numbered in each image, so that those of two images are one."""
    correct = image_contexts.window_numbers

    def each_from_zero(sizes: Sequence[Any], *rest: int) -> Any:
        return np.concatenate([correct([size], *rest) for size in sizes])

    image_contexts.window_numbers = each_from_zero


def windows_of_one_width() -> None:
    """Rows are numbered as if every image were as wide as the first."""
    correct = image_contexts.window_numbers

    def of_first_width(sizes: Sequence[Any], *rest: int) -> Any:
        width = sizes[0][1] if sizes else 1
        areas = [height * each for height, each in sizes]
        cut, first = [np.empty(0, dtype=np.int64)], 0
        for area in areas:
            found = correct([(-(-area // width), width)], *rest)[: area * rest[1]]
            cut.append(first + found)
            first += 1 + int(found.max())
        return np.concatenate(cut)

    image_contexts.window_numbers = of_first_width


def outputs_stay_by_window() -> None:
    """What attention has made is not put back in the order of images."""
    correct = stage_interface.window_context

    def not_back(*args: Any, **options: Any) -> ImageContext:
        found = correct(*args, **options)
        order = found.order
        return replace(found, order=replace(order, back=torch.arange(len(order.back))))

    stage_interface.window_context = not_back


def windows_end_with_the_rank() -> None:
    """A cp rank has only its own keys of a window that another rank has a part of."""
    correct = stage_interface.window_context

    def own_only(*args: Any, alone: bool) -> ImageContext:
        found, held, device = correct(*args, alone=alone), args[3], args[4]
        if alone:
            return found
        ends = np.cumsum(found.own_lengths, dtype=np.int64)
        own = ends - np.array(found.own_lengths, dtype=np.int64), ends
        mine = found.order.own[: sum(found.own_lengths)]
        order = replace(found.order, keys=mine + held.start)
        return replace(listed_context(own, own, device, same=None), order=order)

    stage_interface.window_context = own_only


WINDOW_BUGS = {
    "windows ignored": (windows_ignored, windowed()),
    "windows shared by images": (windows_shared_by_images, windowed(tp=2)),
    "windows of one width": (windows_of_one_width, windowed()),
    "outputs stay by window": (outputs_stay_by_window, windowed(pp=2)),
    "windows end with the cp rank": (windows_end_with_the_rank, windowed(cp=2)),
}
