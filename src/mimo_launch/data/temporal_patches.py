"""Videos that are made up: the images that a video consists of, and their times.

Decides: that one temporal patch follows another at once, and about a second later where time counts
in seconds; that an image of one temporal patch is no video.
Relies on: `shared_images` for what modules make of an image together.
Leaves: how many there are, and sizes, to `synthetic`; videos of shards to `webdataset`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil

from mimo_launch.data.shared_images import (
    ImageSize,
    frame_size,
    spans_behind,
    video_reader_behind,
)
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.spec.spec import Spec, Videos, VitModel


def temporal_patches(
    spec: Spec, name: str, number: int, size_of: Callable[[str], ImageSize]
) -> Iterator[dict[str, ImageSpan]]:
    """Yield the spans of an image or video for a module that language reads, and those behind it.

    One mapping for each of a `number` of temporal patches if one of them reads videos, else one.
    """
    reader = video_reader_behind(spec, name)
    model = spec.modules[reader or name].model
    video = model.video if isinstance(model, VitModel) else None
    if reader is None or video is None:
        yield dict(spans_behind(spec, name, 0, size_of))
        return
    rule = kind_of(model).tile_rule
    for place in range(number):
        # A video shows no tiles, but frames.
        frame = frame_size(rule, is_last=place == number - 1) if rule and number > 1 else None
        sized = size_of if frame is None else partial(_framed, size_of, reader, frame)
        spans = dict(spans_behind(spec, name, 0, sized, _later(video, place)))
        if video.holds_text and name == reader:
            spans[name] = replace(spans[name], holds_text=True)
        yield spans


def _framed(
    size_of: Callable[[str], ImageSize], reader: str, frame: ImageSize, name: str
) -> ImageSize:
    return frame if name == reader else size_of(name)


def _later(video: Videos, place: int) -> int | None:
    """Return how much later than the first a temporal patch counts, None for the first."""
    if not (video.on_axis and place):
        return None
    return ceil(place * (video.per_second or 1)) if video.in_seconds else place
