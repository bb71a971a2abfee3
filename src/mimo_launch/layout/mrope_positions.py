"""Position ids on several axes (M-RoPE): where a sample's tokens are in time, height and width.

Decides: the ids of text and of the rows of images, as runs of tokens that count alike.
Relies on: the StepData, so that every stage of language knows them and nobody sends them.
Leaves: angles to `layers.attention_contexts`.

Text counts by one on every axis. The rows of an image share one time, and count height and width
from there; what follows an image starts behind its longer side.
Source: Qwen2-VL (arXiv:2409.12191), section 2.1.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
    """Yield the runs of the `seq` tokens of a sample with these images, in order."""
    token = position = 0
    for image in sorted(images, key=lambda image: image.position):
        length = image.position - token
        yield PositionRun(token, length, position)
        position += length
        yield PositionRun(image.position, image.rows, position, image)
        position += max(image.height, image.width)
        token = image.position + image.rows
    yield PositionRun(token, seq - token, position)
