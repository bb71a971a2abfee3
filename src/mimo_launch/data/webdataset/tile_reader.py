"""Images of shards as tiles.

Decides: that the only image of a sample is cut into tiles, and that of several each is one tile, as
by the processor of LLaVA-OneVision.
Relies on: `hugging_face.image_tiles` for sizes, `decode_media` for pixels.
Leaves: the places of rows in a sample to `media_rows`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mimo_launch.data.dataset import BadSample, Media
from mimo_launch.data.shared_images import ImageSize
from mimo_launch.data.webdataset.decode_media import (
    Medium,
    decode_image,
    process,
    process_tiles,
)
from mimo_launch.data.webdataset.member_readers import Array, MediumSize, MemberReader
from mimo_launch.hugging_face.image_processor import ImageRecipe, ProcessorError
from mimo_launch.hugging_face.image_tiles import tiling
from mimo_launch.hugging_face.resize_rules import ImageTooThin
from mimo_launch.kinds.tiles import TileRule
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.spec.spec import Images


@dataclass(frozen=True, slots=True)
class TileReader(MemberReader):
    """The images of one encoder of tiles."""

    medium: ClassVar[Medium] = "image"
    images: Images
    recipe: ImageRecipe
    rule: TileRule

    @property
    def sizing(self) -> list[object]:
        """What the number of rows depends on."""
        return [self.module, repr(self.rule), repr(self.recipe.grids), self.rule.side]

    def rows(self, size: MediumSize) -> tuple[int, int]:
        """Return 1 and the number of rows of an image that is one tile."""
        del size
        return 1, self.rule.num_rows(None)

    def sized(self, size: MediumSize, *, alone: bool) -> ImageSize:
        """Return the rows of an image, and its tiles if it is the only one. Raises: BadSample."""
        try:
            self.recipe.size(*size)
            if not alone or not self.recipe.grids:
                return ImageSize(*self.rows(size))
            found = tiling(*size, self.recipe.grid(*size), self.rule.side, self.rule)
        except ImageTooThin as error:
            raise BadSample(str(error)) from error
        lines, columns = self.rule.shrunk(found)
        if min(lines, columns) < 1:
            raise BadSample(f"an image of {size[1]} x {size[0]} pixels is too thin for a row")
        return ImageSize(1, self.rule.num_rows(found), tiling=found)

    def array(self, suffix: str, data: bytes, span: ImageSpan) -> Media:
        """Return the pixels of the tiles of an image, [tiles, channels, height, width]."""
        image = decode_image(suffix, data, channels=self.images.channels)
        if span.tiling is None:
            tiles = process(image, self.recipe)[None]
        else:
            tiles = process_tiles(image, self.recipe, self.rule.side)
        height, width = self.images.input_shape(self.rule.height, self.rule.width)[-2:]
        cut: Array = np.ascontiguousarray(tiles[..., :height, :width])
        return cut


def tile_reader(name: str, images: Images, rule: TileRule, recipe: ImageRecipe) -> TileReader:
    """Return the reader of an encoder of tiles.

    Raises: ProcessorError if its processor makes tiles of another size, or other grids.
    """
    side = rule.side
    if recipe.only_size not in ((side, side), images.input_shape(rule.height, rule.width)[-2:]):
        raise ProcessorError(f"it does not make images of {side} x {side} pixels, as are the tiles")
    ours = [(down * side, right * side) for down, right in rule.grids]
    if recipe.grids and sorted(ours) != sorted(recipe.grids):
        raise ProcessorError("its image_grid_pinpoints are not the `grids` of the model's `tiles`")
    return TileReader(name, makes=False, images=images, recipe=recipe, rule=rule)
