"""Images of shards of which each becomes several: tiles, and all of it.

Decides: that all encoders of images cut them alike, as each of the images has its place in a text.
Relies on: `hugging_face.cut_rules` for sizes, `decode_media` for pixels.
Leaves: the text around them to `text_parts`, the places of rows in a sample to `media_rows`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from mimo_launch.data.dataset import Media
from mimo_launch.data.webdataset.decode_media import decode_image, medium_of, process_cut
from mimo_launch.data.webdataset.member_readers import ImageReader, MediumSize, MemberReader
from mimo_launch.hugging_face.cut_rules import Cut, grid_of, images_of
from mimo_launch.hugging_face.image_processor import ImageRecipe, ProcessorError
from mimo_launch.hugging_face.video_processor import VideoRecipe
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.spec.spec import Images


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


def cut_reader(
    name: str,
    images: Images,
    recipe: ImageRecipe,
    videos: VideoRecipe | None,
    rate: float,
    *,
    makes: bool,
) -> CutReader:
    """Return the reader of an encoder whose processor cuts images.

    Raises: ProcessorError for a generator, or if the processor does not.
    """
    if makes or recipe.cut is None:
        raise ProcessorError(f"it makes several images of one, but `{name}` learns to make one")
    return CutReader(
        module=name, makes=makes, images=images, recipe=recipe, videos=videos, rate=rate,
        cut=recipe.cut,
    )  # fmt: skip


def cutter_of(readers: Iterable[MemberReader]) -> CutReader | None:
    """Return a reader that cuts images, if there is one.

    Raises: ProcessorError if another encoder reads the same images and does not cut them alike.
    """
    reading = [each for each in readers if isinstance(each, ImageReader) and not each.makes]
    found = next((each for each in reading if isinstance(each, CutReader)), None)
    if found is None:
        return None
    for each in reading:
        if each.recipe.cut != found.cut:
            raise ProcessorError(
                f"the image processor of `{found.module}` makes several images of one, and that of "
                f"`{each.module}` not the same: in `data.processors`, name one folder for both"
            )
    return found
