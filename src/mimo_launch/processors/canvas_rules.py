"""The rule by which Llama 4 cuts an image: put on a canvas of whole tiles, undistorted.

Decides: the canvas, and the size of the image on it; the rest of it is black, right and below.
Relies on: `cut_rules` for what a cut is.
Leaves: pixels, which are in bf16, to `data.samples.decode_media`, text to `image_texts`.

Source: `transformers` 5.24, models/llama4.
"""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.cut_rules import Cut
from mimo_launch.processors.resize_rules import MOST_PIXELS, Size


@frozen
class Canvas(Cut):
    """The canvas that enlarges an image least; if all shrink it, the one that shrinks it least.

    If it takes the `largest`, the canvas that enlarges an image most. Otherwise an image is never
    enlarged beyond the side of a tile.
    """

    shrinks_grid: ClassVar[bool] = False
    largest: bool

    def steps(self, height: int, width: int) -> list[Size]:
        """Return the size of the canvas of an image."""
        import numpy as np

        # In fp32, so that the same canvases have equal scales.
        canvases = np.array(_canvases(self.tiles[1])) * self.tile[0]
        wide = canvases.astype(np.float32)
        scales = np.minimum(wide[:, 0] / np.float32(height), wide[:, 1] / np.float32(width))
        grows = scales[scales >= 1]
        least = len(grows) > 0 and not self.largest
        fitting = canvases[scales == (grows.min() if least else scales.max())]
        tall, across = fitting[fitting.prod(axis=1).argmin()].tolist()
        return [(tall, across)]

    def fitted(self, height: int, width: int) -> Size:
        """Return height and width of an image on its canvas."""
        [(tall, wide)] = self.steps(height, width)
        if not self.largest:
            side = self.tile[0]
            tall, wide = min(max(height, side), tall), min(max(width, side), wide)
        down, right = tall / height, wide / width
        if right < down:
            return max(min(math.floor(height * right), tall), 1), wide
        return tall, max(min(math.floor(width * down), wide), 1)


@lru_cache(maxsize=8)
def _canvases(most: int) -> tuple[Size, ...]:
    """Return the canvases of up to `most` tiles, in tiles, those of one aspect together."""
    by_aspect: dict[float, list[Size]] = {}
    for tiles in range(most, 0, -1):
        for tall in range(1, tiles + 1):
            if tiles % tall == 0:
                wide = tiles // tall
                by_aspect.setdefault(tall / wide, []).append((tall, wide))
    return tuple(each for alike in by_aspect.values() for each in alike)


def canvas_of(config: Mapping[str, Any]) -> Canvas:
    """Return the rule of a Llama 4. Raises: KeyError, TypeError, ValueError."""
    size, most = config["size"], int(config["max_patches"])
    side = int(size["height"])
    if side != int(size["width"]) or side < 1 or most < 1 or side**2 * most > MOST_PIXELS:
        raise ValueError(f"size: {json.dumps(size)}, max_patches: {most}")
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if not config.get(key, True):
            raise ValueError(f"{key}: false")
    return Canvas((side, side), (1, most), bool(config["resize_to_max_canvas"]))
