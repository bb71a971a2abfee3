"""Images whose tiles precede the whole image: grids, pixels and rows of shards."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mimo_launch.data.samples.readers import tile_reader
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.tiles import Tiling
from mimo_launch.models.tiled_rows import NEWLINE, SEPARATOR, row_patches
from mimo_launch.processors.image_recipe import ImageRecipe
from mimo_launch.processors.resize_rules import Exact
from mimo_launch.spec.load import model_from_data

SIDE = 8
MODEL: dict[str, Any] = {
    "kind": "vit", "layers": 2, "hidden": 32, "heads": 4, "patch": 2, "channels": 3, "shuffle": 2,
    "positions": "learned", "image": [4, 4],
    "tiles": {
        "grids": [[1, 1], [1, 2], [2, 1], [2, 2], [1, 3]], "each": True, "whole": "last",
    },
}  # fmt: skip


def reader_of() -> Any:
    """Return the reader of a tower whose processor makes squares of a tile."""
    model: Any = model_from_data(MODEL)
    rule = kind_of(model).tokens.tiles
    assert rule is not None
    recipe = ImageRecipe(Exact(SIDE, SIDE))
    return tile_reader("vision", model, rule, recipe, None, 1.0)


@pytest.mark.parametrize(
    ("size", "grid"),
    [((8, 8), (1, 1)), ((5, 3), (1, 1)), ((8, 9), (1, 2)), ((9, 9), (2, 2)), ((3, 20), (1, 3))],
)
def test_an_image_gets_the_smallest_grid_that_keeps_its_pixels(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    """As the processor of Phi-4 multimodal does; it is cut even if it is one of several."""
    tall, wide = grid
    for alone in (True, False):
        found = reader_of().sized(size, alone=alone)
        assert found.shown == Tiling(tall, wide, 2 * tall, 2 * wide)
        assert found.rows == 2 * tall * (2 * wide + 1) + 1 + 2 * 3


def test_an_image_fills_its_grid() -> None:
    reader = reader_of()
    random = np.random.default_rng(0).integers(0, 256, (10, 13, 3), dtype=np.uint8)
    image, file = Image.fromarray(random), io.BytesIO()
    image.save(file, "PNG")
    span = reader.sized((10, 13), alone=True)
    whole, *tiles = reader.array(".png", file.getvalue(), span)
    assert len(tiles) == 4
    lines = [np.concatenate(tiles[i : i + 2], axis=2) for i in (0, 2)]
    for found, side in ((np.concatenate(lines, axis=1), 2 * SIDE), (whole, SIDE)):
        made = image.resize((side, side), resample=Image.Resampling.BICUBIC)
        wanted = (np.asarray(made, dtype=np.float32).transpose(2, 0, 1) / 255 - 0.5) / 0.5
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_every_line_ends_with_a_learned_row() -> None:
    model: Any = model_from_data(MODEL)
    rule = kind_of(model).tokens.tiles
    assert rule is not None
    places, shares = row_patches(rule, rule.filled(1, 2))
    line, between = [NEWLINE], [SEPARATOR]
    assert places[:, 0].tolist() == [
        *(4, 5, 8, 9), *line, *(6, 7, 10, 11), *line, *between, *(0, 1), *line, *(2, 3), *line,
    ]  # fmt: skip
    assert (shares == [1, 0, 0, 0]).all()
    assert len(places) == rule.num_rows(rule.filled(1, 2))
