"""Images of shards of which each becomes several: tiles, and all of it.

Decides: what is told of each image, from which the text around it is written.
Relies on: `hugging_face.cut_rules` for sizes, `decode_media` for pixels; on `checks` that all
encoders of images cut them alike.
Leaves: the text around them to `text_parts`, the places of rows in a sample to `media_rows`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from mimo_launch.data.dataset import Media
from mimo_launch.data.webdataset.decode_media import decode_image, medium_of, process_cut
from mimo_launch.data.webdataset.member_readers import ImageReader, MediumSize
from mimo_launch.hugging_face.cut_rules import Cut, grid_of, images_of
from mimo_launch.layout.step_data import ImageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class CutReader(ImageReader):
    """The images of one encoder, for which each of a sample is several of one size."""

    cut: Cut

    @property
    def sizing(self) -> list[object]:
        """What the number of rows, and that of images, depends on."""
        return [self.module, self.images.row_side, repr(self.cut), *self.sizing_of_videos]

    def pieces(self, size: MediumSize) -> list[int]:
        """Return the columns of the grid of an image, once for each image that it becomes."""
        return [grid_of(self.cut, *size)[1]] * images_of(self.cut, *size)

    def arrays(self, suffix: str, data: bytes, spans: Sequence[ImageSpan]) -> list[Media]:
        """Return the pixels of as many tiles of an image as are used, or of frames of a video."""
        if medium_of(suffix) == "video":
            # In a class with slots, `super()` has no class to begin at.
            return ImageReader.arrays(self, suffix, data, spans)
        image = decode_image(suffix, data, channels=self.images.channels)
        made = islice(process_cut(image, self.recipe, self.cut), len(spans))
        return [self.as_input(*each) for each in zip(made, spans, strict=True)]
