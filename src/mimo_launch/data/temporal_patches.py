"""Synthetic videos: the images of a video, and their times.

Decides: that temporal patches follow each other without a gap, about a second apart where time is
in seconds; that an image of one temporal patch is not a video.
Relies on: `shared_images` for the rows that modules make of an image together.
Leaves: the number of patches and their sizes to `synthetic`; videos of shards to `webdataset`.
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
    """Yield the spans of an image or video for a module that language reads and modules upstream.

    Yields one mapping per temporal patch if one of these modules reads videos, else one in all.
    """
    reader = video_reader_behind(spec, name)
    model = spec.modules[reader or name].model
    video = model.video if isinstance(model, VitModel) else None
    if reader is None or video is None:
        yield dict(spans_behind(spec, name, 0, size_of))
        return
    rule = kind_of(model).tile_rule
    for place in range(number):
        # A video has frames instead of tiles.
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
    """Return how much later a temporal patch is than the first, None for the first."""
    if not (video.on_axis and place):
        return None
    return ceil(place * (video.per_second or 1)) if video.in_seconds else place
