"""The rows that several modules make of the same image, clip or video, and their places in a text.

Decides: which modules see the same image; the rows that connectors make of encoder rows; that the
temporal patches of a synthetic video follow each other without a gap, about a second apart where
time is in seconds, and that an image of one temporal patch is not a video.
Relies on: `kinds` for the rows of one module.
Leaves: sizes of images to `sample_sizes` and the data sets, videos of shards to `samples`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from math import ceil

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.tiles import Frame, Shown, TileRule
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec, Videos


@frozen
class ImageSize:
    """An image in rows: patches or, with pixel shuffle, squares of patches. A clip is 1 high.

    A clip may have `loose` tokens, which make no row. An image in tiles is 1 high, too.
    """

    height: int
    width: int
    loose: int = 0
    shown: Shown = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.height * self.width


def frame_size(rule: TileRule, *, is_last: bool) -> ImageSize:
    """Return the rows of a frame of a video, for an encoder of tiles."""
    frame = Frame(is_last)
    return ImageSize(1, rule.num_rows(frame), shown=frame)


def upstream_video_reader(spec: Spec, name: str) -> str | None:
    """Return `name` or a module upstream of it, whichever reads videos, if any."""
    seeing = sorted({name} | upstream_of(spec, name))
    images = ((each, kind_of(spec.modules[each].model).images) for each in seeing)
    return next((each for each, found in images if found and found.reads_videos), None)


def size_made(spec: Spec, name: str, size_of: Callable[[str], ImageSize]) -> ImageSize:
    """Return the rows that a module makes of an image, given the rows of each encoder."""

    @cache
    def made(name: str) -> ImageSize:
        kind, sources = kind_of(spec.modules[name].model), spec.sources_of(name)
        if not (kind.reading.takes_rows and sources) or kind.computes_loss:
            return size_of(name)
        sizes = [made(source) for source in sources]
        return ImageSize(*kind.reading.rows_of([(size.height, size.width) for size in sizes]))

    return made(name)


def upstream_spans(
    spec: Spec,
    name: str,
    position: int,
    size_of: Callable[[str], ImageSize],
    later: int | None = None,
    *,
    joined: bool = False,
) -> Iterator[tuple[str, ImageSpan]]:
    """Yield the span of an image for a module that language reads, and for modules upstream of it.

    `later` is set for a span of a video, `joined` for one of the same medium as the one before it.

    Upstream modules that language also reads directly have their own spans. A module upstream of
    several is yielded with the first of them.
    """
    for each in made_together(spec, name):
        size = size_made(spec, each, size_of)
        span = ImageSpan(position, size.height, size.width, later=later, loose=size.loose)
        yield each, replace(span, shown=size.shown, joined=joined)


def spans_to_make(spec: Spec, name: str, made: ImageSpan) -> Iterator[tuple[str, ImageSpan]]:
    """Yield the span that a generator makes from tokens, and the spans of connectors before it."""
    yield name, made
    for source in spec.sources_of(name):
        if source != LANGUAGE:
            size = size_made(spec, source, lambda _: ImageSize(1, made.num_positions))
            yield from spans_to_make(
                spec, source, ImageSpan(made.position, size.height, size.width, reads=made.reads)
            )


def makers(spec: Spec) -> list[str]:
    """Return the modules downstream of language that make images or clips, without connectors."""
    return [n for n, m in spec.generators.items() if kind_of(m.model).computes_loss]


def made_together(spec: Spec, name: str) -> list[str]:
    """Return a module that language reads, and the upstream modules that no earlier one has."""
    own = spec.sources_of(LANGUAGE)
    elsewhere = {*own}.union(*(upstream_of(spec, earlier) for earlier in own[: own.index(name)]))
    return [name, *sorted(upstream_of(spec, name) - elsewhere)]


def upstream_of(spec: Spec, name: str) -> set[str]:
    """Return every module upstream of a module: the modules that it reads, and so on."""
    found: set[str] = set()
    left = [*spec.sources_of(name)]
    while left:
        if (each := left.pop()) not in found:
            found.add(each)
            left += spec.sources_of(each)
    return found


def shown_together(spec: Spec) -> dict[str, str]:
    """Return, for each module that language reads, the first one that sees the same images.

    The relation is transitive: two modules without a common image are together if a third sees
    images of both.
    """
    seen = {name: {name} | upstream_of(spec, name) for name in spec.sources_of(LANGUAGE)}
    found: dict[str, str] = {}
    for first in seen:
        together: set[str] = set()
        more = [] if first in found else [first]
        while more:
            found |= dict.fromkeys(more, first)
            together.update(*(seen[name] for name in more))
            more = [name for name in seen if name not in found and seen[name] & together]
    return found


def temporal_patches(
    spec: Spec, name: str, number: int, size_of: Callable[[str], ImageSize]
) -> Iterator[dict[str, ImageSpan]]:
    """Yield the spans of an image or video for a module that language reads and modules upstream.

    Yields one mapping per temporal patch if one of these modules reads videos, else one in all.
    """
    reader = upstream_video_reader(spec, name)
    kind = kind_of(spec.modules[reader or name].model)
    video = kind.images.videos if kind.images else None
    if reader is None or video is None:
        yield dict(upstream_spans(spec, name, 0, size_of))
        return
    rule = kind.tokens.tiles
    for place in range(number):
        # A video has frames instead of tiles.
        frame = frame_size(rule, is_last=place == number - 1) if rule and number > 1 else None
        sized = size_of if frame is None else partial(_framed, size_of, reader, frame)
        spans = dict(upstream_spans(spec, name, 0, sized, _later(video, place), joined=place > 0))
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
