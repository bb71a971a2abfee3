"""The steps from an image to the input of an encoder, and the sizes that they make.

Relies on: `resize_rules` for sizes, `cut_rules` for tiles.
Leaves: the settings of folders to `images`, images without one to `recipes`; pixels to
`decode_media`, which carries out a recipe.
"""

from pathlib import Path

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.cut_rules import Cut, best_grid
from mimo_launch.processors.resize_rules import Resize, limit

LANCZOS, BILINEAR, BICUBIC = 1, 2, 3
HALF = (0.5, 0.5, 0.5)


@frozen
class ImageRecipe:
    """Steps from a decoded image to the array of an encoder, in this order.

    `resample` is the number of a Pillow filter; pixels are resized `as_floats`, or in 8 bits. If
    there are `grids`, given by height and width in pixels, the only image of a sample, or each, is
    cut into tiles on one of them. With `cut`, each image becomes several, and the other steps apply
    to each; if it is `tiled` by a cut, these are tiles of one image. With a `canvas`, a resized
    image is centred on that height and width.
    What is around an image in a square or on a canvas has the colour `fill`.
    If it is `made_by` the class of the processor in a folder, `resize` is the size that it makes.
    """

    resize: Resize | None
    pad_square: bool = False
    canvas: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    resample: int = BICUBIC
    scale: float = 1 / 255
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    fill: tuple[int, ...] = (127, 127, 127)
    grids: tuple[tuple[int, int], ...] = ()
    cut: Cut | None = None
    tiled: Cut | None = None
    as_floats: bool = False
    made_by: Path | None = None

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing. Raises: ImageTooThin."""
        return (height, width) if self.resize is None else self.resize.size(height, width)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of an image after all steps. Raises: ImageTooThin."""
        if self.pad_square:
            limit(height, width, made=max(height, width) ** 2)
            height = width = max(height, width)
        resized = self.resized(height, width)
        return self.crop or self.canvas or resized

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the grid on which an image is cut into tiles. Raises: ImageTooThin."""
        return best_grid(height, width, self.grids)

    @property
    def factor(self) -> int | None:
        """A number of pixels that divides the sides of every image, if there is one."""
        return None if self.resize is None else self.resize.divisor

    @property
    def most_pixels(self) -> int | None:
        """The most pixels of an image, if there is a limit."""
        return None if self.resize is None else self.resize.most_pixels

    @property
    def only_size(self) -> tuple[int, int] | None:
        """Height and width of every image, if all are equal."""
        fixed = self.crop or self.canvas
        return fixed or (None if self.resize is None else self.resize.only_size)
