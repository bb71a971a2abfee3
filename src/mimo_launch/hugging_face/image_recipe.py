"""What is done to an image before an encoder sees it, and how large that makes it.

Decides: the steps there are, and the sizes they make.
Relies on: nothing.
Leaves: pixels to `data.webdataset.decode`, which carries out a recipe.
"""

import math
from dataclasses import dataclass

BICUBIC = 3
MAX_ASPECT = 200
# No step makes more pixels, whatever the aspect of an image: half a gigabyte in 8-bit RGB.
MOST_PIXELS = 178_000_000
HALF = (0.5, 0.5, 0.5)


class ImageTooThin(ValueError):
    """An image of such an aspect, or so small, that no row can be made of it."""


@dataclass(frozen=True, slots=True)
class Exact:
    """Resize to this height and width."""

    height: int
    width: int


@dataclass(frozen=True, slots=True)
class ShortEdge:
    """Resize so that the shorter edge has this length."""

    length: int


@dataclass(frozen=True, slots=True)
class Smart:
    """Resize to multiples of `factor` with an area in a range, near the aspect of the image.

    The rule of Qwen2-VL (https://arxiv.org/abs/2409.12191, section 2.1).
    """

    factor: int
    min_pixels: int
    max_pixels: int


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """Steps from a decoded image to the array of an encoder, in this order.

    `resample` is the number of one of Pillow's filters.
    """

    resize: Exact | ShortEdge | Smart | None
    pad_square: bool = False
    crop: tuple[int, int] | None = None
    resample: int = BICUBIC
    scale: float = 1 / 255
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width behind the resizing. Raises: ImageTooThin."""
        match self.resize:
            case Exact(new_height, new_width):
                return new_height, new_width
            case ShortEdge(short):
                # Rounded down, as transformers does.
                long = int(short * max(height, width) / min(height, width))
                _limit(height, width, made=long * short)
                return (long, short) if width <= height else (short, long)
            case Smart() as rule:
                return _smart(height, width, rule)
            case None:
                return height, width

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of what becomes of an image. Raises: ImageTooThin."""
        if self.pad_square:
            _limit(height, width, made=max(height, width) ** 2)
            height = width = max(height, width)
        resized = self.resized(height, width)
        return self.crop or resized

    @property
    def only_size(self) -> tuple[int, int] | None:
        """Height and width of every image, if all are alike."""
        if self.crop is None and isinstance(self.resize, Exact):
            return self.resize.height, self.resize.width
        return self.crop


def _limit(height: int, width: int, *, made: int) -> None:
    if made > MOST_PIXELS:
        raise ImageTooThin(f"{width} x {height} pixels become {made / 1e6:.0f} million on the way")


def _smart(height: int, width: int, rule: Smart) -> tuple[int, int]:
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ImageTooThin(f"{width} x {height} pixels are more than {MAX_ASPECT} to 1")
    factor = rule.factor
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > rule.max_pixels:
        shrink = math.sqrt(height * width / rule.max_pixels)
        tall, wide = (
            max(factor, math.floor(edge / shrink / factor) * factor) for edge in (height, width)
        )
    elif tall * wide < rule.min_pixels:
        grow = math.sqrt(rule.min_pixels / (height * width))
        tall, wide = (math.ceil(edge * grow / factor) * factor for edge in (height, width))
    return tall, wide
