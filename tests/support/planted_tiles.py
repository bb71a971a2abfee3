"""Known ways to get images in tiles wrong; `planted` lists them with the others."""

from typing import Any

import numpy as np
from tests.support.shapes import plant
from tests.support.specs import box, spec

from mimo_launch.kinds.shapes import OneShape
from mimo_launch.kinds.tiles import Tiling
from mimo_launch.models import tiled_rows
from mimo_launch.models.tiled_rows import TiledRows
from mimo_launch.spec.spec import Spec

TILES: dict[str, Any] = {
    "layers": 2, "positions": "learned", "image": [3, 4],
    "tiles": {"grids": [[1, 2], [2, 2]], "most": 2},
}  # fmt: skip


def tiled(**vision: Any) -> Spec:
    """A tower in front of a decoder on the ranks behind it, up to four tiles an image."""
    module = box(0, model=TILES, **vision)
    first = 1 + int(module["ranks"].rpartition("-")[2])
    modules = {"vision": module, "language": box(first)}
    return spec(modules, microbatches=2, mbs=2, max_images=2, text_only=0.2)


def padding_kept() -> None:
    """The lines in the middle are counted from the upper edge of the tiles."""
    correct = tiled_rows._places

    def from_the_edge(rule: Any, tiling: Any, down: Any, right: Any) -> Any:
        lines, columns = tiling.tall * rule.height, tiling.wide * rule.width
        whole = Tiling(tiling.tall, tiling.wide, lines, columns)
        return correct(rule, whole, down, right)

    tiled_rows._places = from_the_edge


def corners_averaged() -> None:
    """Averages are taken between corners, not between centres."""

    def between_corners(size: int, number: int) -> Any:
        at = np.linspace(0, size - 1, number)
        before = np.floor(at).astype(np.int64)
        share = at - before
        return [(before, 1 - share), (np.minimum(before + 1, size - 1), share)]

    tiled_rows._neighbours = between_corners


def learned_row_of_one_rank() -> None:
    """The gradient of the learned row is taken for complete on each tp rank."""
    plant(OneShape, "TiledRows", terms="complete")


def own_patches_only() -> None:
    """A cp rank makes its rows of its own patches, as if they were the first ones."""
    correct = TiledRows.forward

    def own(self: Any, patches: Any, sources: Any) -> Any:
        return correct(self, patches.roll(self.context.cp.index, dims=0), sources)

    TiledRows.forward = own


TILE_BUGS = {
    "padding of tiles kept": (padding_kept, tiled()),
    "rows averaged between corners": (corners_averaged, tiled()),
    "learned row of one tp rank": (
        learned_row_of_one_rank, tiled(tp=2, sequence_parallel=True),
    ),
    "patches of another cp rank": (own_patches_only, tiled(cp=2)),
}  # fmt: skip
