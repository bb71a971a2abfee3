"""Positions of text and of the rows of images on three axes (M-RoPE), as runs of tokens.

Decides: the position ids of the tokens of a sample.
Relies on: places of images in a sample, which every language stage knows without messages.
Leaves: packed documents to `language_input`, angles to `layers.rotary_angles`.

Text counts by one on every axis. The rows of an image share one time, and count height and width
from there; the next position follows the image's longer side. Each temporal patch of a video has
its own time; the next position follows the longer side or the last of these times (Qwen2.5-Omni).
The sound of a video counts by one on every axis from where the video begins; the next position
follows what comes last, sound or image, as in transformers.
Source: Qwen2-VL (arXiv:2409.12191), section 2.1; Qwen2.5-Omni (arXiv:2503.20215), section 2.2.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mimo_launch.layout.step_data import ImageSpan, whole_video

NUM_AXES = 3


@dataclass(frozen=True, slots=True)
class PositionRun:
    """Consecutive tokens of text or, with `image`, of one image; their ids start at `position`."""

    first_token: int
    num_tokens: int
    position: int
    image: ImageSpan | None = None


def position_runs(spans: Iterable[ImageSpan], seq: int) -> Iterator[PositionRun]:
    """Yield, in order, the runs that cover the `seq` tokens of a sample with these spans.

    They are of images and of the sound of videos. Lines of an image with text between them count as
    separate images.
    """
    spans = list(spans)
    shared = sorted(at for span in spans if span.shares_bounds for at in _shared(span, spans))
    lines = ((line, not span.parts) for span in spans for line in span.lines)
    token = position = corner = 0
    for line, is_image in sorted(lines, key=lambda line: line[0].position):
        if line.later is None:
            *before, last = _text(token, line.position, position, shared)
            yield from (*before, last)
            corner = last.position + last.num_tokens
        if is_image:
            yield PositionRun(line.position, line.rows, corner, line)
            position = corner + line.length
        else:
            first = corner + (line.later or 0)
            yield PositionRun(line.position, line.rows, first)
            position = first + line.rows
        token = line.position + line.rows
    yield from _text(token, seq, position, shared)


def _shared(sound: ImageSpan, spans: Iterable[ImageSpan]) -> tuple[int, int]:
    """Return the tokens around a video with this sound that have the position before them."""
    video = whole_video(sound, spans)
    return video.start - 1, video.stop + 1


def _text(token: int, stop: int, position: int, shared: Iterable[int]) -> Iterator[PositionRun]:
    """Yield the runs of text from a token on; tokens `shared` have the position before them."""
    for place in shared:
        if token < place < stop:
            yield PositionRun(token, place - token, position)
            token, position = place, position + place - token - 1
    yield PositionRun(token, stop - token, position)


def axis_positions(spans: Iterable[ImageSpan], seq: int) -> np.ndarray:
    """Return time, height and width of the tokens of a sample, int64 [3, seq].

    See `position_runs`.
    """
    ids = np.empty((NUM_AXES, seq), dtype=np.int64)
    for run in position_runs(spans, seq):
        here = ids[:, run.first_token : run.first_token + run.num_tokens]
        if run.image is None:
            here[:] = np.arange(run.num_tokens)
        else:
            here[0] = run.image.later or 0
            here[1:] = np.indices((run.image.height, run.image.width)).reshape(2, -1)
        here += run.position
    return ids
