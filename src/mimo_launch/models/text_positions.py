"""Positions of text and of the rows of images on three axes (M-RoPE), as runs of tokens.

Decides: the position ids of the tokens of a sample.
Relies on: places of images in a sample, which every language stage knows without messages.
Leaves: packed documents to `language_input`, angles to `layers.rotary_angles`.

Text counts by one on every axis. The rows of an image share one time, and count height and width
from there; the next position follows the image's longer side. Each temporal patch of a video has
its own time; the next position follows the longer side or the last of these times (Qwen2.5-Omni).
Source: Qwen2-VL (arXiv:2409.12191), section 2.1.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mimo_launch.layout.step_data import ImageSpan

NUM_AXES = 3


@dataclass(frozen=True, slots=True)
class PositionRun:
    """Consecutive tokens of text or, with `image`, of one image; their ids start at `position`."""

    first_token: int
    num_tokens: int
    position: int
    image: ImageSpan | None = None


def position_runs(images: Iterable[ImageSpan], seq: int) -> Iterator[PositionRun]:
    """Yield, in order, the runs that cover the `seq` tokens of a sample with these images.

    Lines of an image with text between them count as separate images.
    """
    token = position = corner = 0
    lines = (line for image in images for line in image.lines)
    for image in sorted(lines, key=lambda image: image.position):
        if image.later is None:
            length = image.position - token
            yield PositionRun(token, length, position)
            corner = position + length
        yield PositionRun(image.position, image.rows, corner, image)
        position = corner + image.length
        token = image.position + image.rows
    yield PositionRun(token, seq - token, position)


def axis_positions(images: Iterable[ImageSpan], seq: int) -> np.ndarray:
    """Return time, height and width of the tokens of a sample, int64 [3, seq]."""
    ids = np.empty((NUM_AXES, seq), dtype=np.int64)
    for run in position_runs(images, seq):
        here = ids[:, run.first_token : run.first_token + run.num_tokens]
        if run.image is None:
            here[:] = np.arange(run.num_tokens)
        else:
            here[0] = run.image.later or 0
            here[1:] = np.indices((run.image.height, run.image.width)).reshape(2, -1)
        here += run.position
    return ids
