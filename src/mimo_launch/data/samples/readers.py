"""The inputs of each module from samples of shards: clips, codes, images, cut images, tiles.

Decides: the reader of each module; the value `told` of an image that becomes several, from which
the text around it is written; that each frame of a video is one tile, and each of several images
as well where the rule of tiles says so, as in the processors of LLaVA-OneVision.
Relies on: `member_readers` for media that are not cut; `processors.cut_rules` for sizes,
`decode_media` for pixels; `checks`, which ensures that all image encoders cut images alike.
Leaves: the text around images to `media_text`, the places of rows in a sample to `media_rows`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from mimo_launch.data.dataset import BadSample, Media
from mimo_launch.data.samples.class_runner import ClassRunner
from mimo_launch.data.samples.decode_media import (
    decode_image,
    medium_of,
    process,
    process_cut,
    process_tiles,
)
from mimo_launch.data.samples.member_readers import (
    Array,
    ClipReader,
    CodesReader,
    ImageReader,
    MediumSize,
    MemberReader,
)
from mimo_launch.data.shared_images import ImageSize, frame_size
from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.tiles import IndicatorRule, TileRule
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.processors.cut_rules import Cut, tiling
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.image_recipe import ImageRecipe
from mimo_launch.processors.recipes import recipe_of, video_recipe_of
from mimo_launch.processors.resize_rules import ImageTooThin
from mimo_launch.processors.unlike_tiles import tiles_unlike
from mimo_launch.processors.video_recipe import TakenVideo, VideoRecipe
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Images, Spec, UserData


def readers_of(spec: Spec) -> Iterator[MemberReader]:
    """Yield the readers of all modules, encoders first. Raises: ProcessorError."""
    for name in (*spec.encoders, *spec.generators):
        model, makes = spec.modules[name].model, name in spec.generators
        kind = kind_of(model)
        if (clips := kind.clips) is not None:
            own = spec.data if isinstance(spec.data, UserData) else None
            cuts = own is not None and own.long_clips == "cut"
            hears = own is not None and own.video.sound and name in spec.sources_of(LANGUAGE)
            yield ClipReader(name, makes, clips, cuts, hears)
        elif (images := kind.images) is not None:
            recipe, videos, data = recipe_of(spec, name), video_recipe_of(spec, name), spec.data
            rate = data.video.rate if isinstance(data, UserData) else 1.0
            if any(unlike := tiles_unlike(images, kind.tokens.tiles, recipe)):
                raise ProcessorError(unlike[0])
            if (rule := kind.tokens.tiles) is not None:
                yield tile_reader(name, images, rule, recipe, videos, rate)
            elif (cut := recipe.cut) is not None:
                yield CutReader(name, makes, images, recipe, videos, rate, cut=cut)
            elif recipe.made_by is not None and recipe.only_size is not None:
                runner = ClassRunner(recipe.made_by, recipe.only_size)
                yield ClassReader(name, makes, images, recipe, videos, rate, runner=runner)
            else:
                yield ImageReader(name, makes, images, recipe, videos, rate)
        elif (codes := kind.codes) is not None:
            yield CodesReader(name, makes, codes)


@frozen(kw_only=True)
class ClassReader(ImageReader):
    """The images of one module that the class of a processor makes in a process of its own."""

    runner: ClassRunner

    def array(self, suffix: str, data: bytes, span: ImageSpan) -> Array:
        """Return the pixels of an image that becomes `span`. Raises: BadSample."""
        image = decode_image(suffix, data, channels=self.images.channels)
        return self.as_input(self.runner.pixels(image), span)


@frozen(kw_only=True)
class CutReader(ImageReader):
    """The images of one encoder that cuts each image into several of one size."""

    cut: Cut

    @property
    def sizing(self) -> list[object]:
        """The settings that the numbers of rows and images depend on."""
        most, read = self.images.most_places, self.sizing_of_videos
        cut = [self.module, self.images.row_side, repr(self.cut), *read]
        return cut if most is None else [*cut, most]

    def pieces(self, size: MediumSize) -> list[tuple[int, MediumSize]]:
        """Return, for each image that one becomes, the columns of the grid, and its own size.

        Raises: BadSample.
        """
        try:
            columns = self.cut.grid(*size)[1]
            return [(columns, each) for each in self.cut.pieces(*size)]
        except ImageTooThin as error:
            raise BadSample(str(error)) from error

    def rows(self, size: MediumSize) -> tuple[int, int]:
        """Return the height and width in rows of one image that another becomes.

        Raises: BadSample.
        """
        side = self.images.row_side
        self._limit(f"a part of {size[1]} x {size[0]}", *size)
        return size[0] // side, size[1] // side

    def arrays(self, suffix: str, data: bytes, spans: Sequence[ImageSpan]) -> list[Media]:
        """Return the pixels of the used tiles of an image, or of the used frames of a video."""
        if medium_of(suffix) == "video":
            # `super()` without arguments fails in a dataclass with slots.
            return ImageReader.arrays(self, suffix, data, spans)
        image = decode_image(suffix, data, channels=self.images.channels)
        made = islice(process_cut(image, self.recipe, self.cut), len(spans))
        return [self.as_input(*each) for each in zip(made, spans, strict=True)]


@frozen(kw_only=True)
class TileReader(ImageReader):
    """The images of one encoder of tiles; with `videos`, it also reads videos."""

    rule: TileRule

    @property
    def sizing(self) -> list[object]:
        """The settings that the number of rows depends on."""
        read = self.sizing_of_videos
        return [self.module, repr(self.rule), repr(self.recipe.grids), self.rule.side, *read]

    def rows(self, size: MediumSize) -> tuple[int, int]:
        """Return 1 and the number of rows of an image that is one tile."""
        del size
        return 1, self.rule.num_rows(None)

    def sized(self, size: MediumSize, *, alone: bool) -> ImageSize:
        """Return the rows of an image, and its tiles if it is cut. Raises: BadSample."""
        try:
            self.recipe.size(*size)
            if not (alone or self.rule.each) or not self.recipe.grids:
                return ImageSize(*self.rows(size))
            found = tiling(*size, self.recipe.grid(*size), self.rule.side, self.rule)
        except ImageTooThin as error:
            raise BadSample(str(error)) from error
        lines, columns = self.rule.shrunk(found)
        if min(lines, columns) < 1:
            raise BadSample(f"an image of {size[1]} x {size[0]} pixels is too thin for a row")
        return ImageSize(1, self.rule.num_rows(found), shown=found)

    def array(self, suffix: str, data: bytes, span: ImageSpan) -> Array:
        """Return the pixels of the tiles of an image, [tiles, channels, height, width]."""
        image = decode_image(suffix, data, channels=self.images.channels)
        if span.shown is None:
            return self._seen(process(image, self.recipe)[None])
        fills = self.rule.whole_last
        return self._seen(process_tiles(image, self.recipe, self.rule.side, fills=fills))

    def _group_sizes(self, taken: TakenVideo) -> tuple[ImageSize, ...]:
        """Return the rows of each frame of a video."""
        last = len(taken.later) - 1
        return tuple(frame_size(self.rule, is_last=number == last) for number in range(last + 1))

    def _group(self, pixels: Array, span: ImageSpan) -> Array:
        """Return a frame [channels, 1, height, width] as a tile."""
        del span
        return self._seen(pixels.swapaxes(0, 1))

    def _seen(self, tiles: Array) -> Array:
        """Return tiles without the pixels after their last whole patches."""
        height, width = self.images.input_shape(self.rule.height, self.rule.width)[-2:]
        return np.ascontiguousarray(tiles[..., :height, :width])


@frozen(kw_only=True)
class IndicatedReader(TileReader):
    """The images of one encoder of tiles with learned rows between them; `cut` makes the tiles."""

    cut: Cut | None

    @property
    def sizing(self) -> list[object]:
        """The settings that the number of rows depends on."""
        return [self.module, repr(self.rule), repr(self.cut)]

    def sized(self, size: MediumSize, *, alone: bool) -> ImageSize:
        """Return the rows of an image, and its tiles if there are several. Raises: BadSample."""
        del alone
        grid = (1, 1) if self.cut is None else self.cut.grid(*size)
        [shown] = self.rule.shown_on(*grid)
        return ImageSize(1, self.rule.num_rows(shown), shown=shown)

    def array(self, suffix: str, data: bytes, span: ImageSpan) -> Array:
        """Return the pixels of the tiles of an image, [tiles, channels, height, width]."""
        image = decode_image(suffix, data, channels=self.images.channels)
        if span.shown is None or self.cut is None:
            return process(image, self.recipe)[None]
        return np.stack(list(process_cut(image, self.recipe, self.cut)))


def tile_reader(
    name: str,
    images: Images,
    rule: TileRule,
    recipe: ImageRecipe,
    videos: VideoRecipe | None,
    rate: float,
) -> TileReader:
    """Return the reader of an encoder of tiles, like which its processor cuts images."""
    if rule.whole_last:
        # Each image is cut, whatever makes its pixels.
        ours = [(down * rule.side, right * rule.side) for down, right in rule.grids]
        recipe = replace(recipe, grids=tuple(ours))
    given: dict[str, Any] = {
        "module": name, "makes": False, "images": images, "recipe": recipe, "videos": videos,
        "rate": rate, "rule": rule,
    }  # fmt: skip
    if isinstance(rule, IndicatorRule):
        return IndicatedReader(**given, cut=recipe.tiled)
    return TileReader(**given)
