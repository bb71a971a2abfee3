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


# The whole image last, with learned rows before the projector; four patches are a row.
LAST: dict[str, Any] = {
    "layers": 2, "positions": "learned", "image": [4, 6], "shuffle": 2, "pooling": "mean",
    "tiles": {"grids": [[1, 2], [2, 2]], "each": True, "whole": "last"},
}  # fmt: skip


def tiled(model: dict[str, Any] = TILES, **vision: Any) -> Spec:
    """A tower in front of a decoder on the ranks behind it, up to four tiles an image."""
    module = box(0, model=model, **vision)
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

    def own(self: Any, patches: Any, *given: Any) -> Any:
        return correct(self, patches.roll(self.context.cp.index, dims=0), *given)

    TiledRows.forward = own


def whole_first() -> None:
    """The whole image comes before its tiles, all with their learned rows."""
    correct = tiled_rows.row_patches

    def turned(rule: Any, shown: Any) -> Any:
        found = correct(rule, shown)
        first = rule.num_rows(shown) - rule.height * (rule.width + 1)
        return tuple(np.concatenate([each[first:], each[:first]]) for each in found)

    tiled_rows.row_patches = turned


def one_learned_row() -> None:
    """The row before the whole image is that of a line."""
    tiled_rows.SEPARATOR = tiled_rows.NEWLINE


def whole_without_learned_rows() -> None:
    """A projected patch is taken where lines of the whole image end."""
    correct = tiled_rows.row_patches

    def without(rule: Any, shown: Any) -> Any:
        found, shares = correct(rule, shown)
        lines = found[-rule.height * (rule.width + 1) :].reshape(rule.height, rule.width + 1, 4)
        lines[:, -1] = lines[:, -2]
        return found, shares

    tiled_rows.row_patches = without


TILE_BUGS = {
    "whole image first": (whole_first, tiled(LAST)),
    "one learned row for both": (one_learned_row, tiled(LAST)),
    "no learned rows of the whole image": (whole_without_learned_rows, tiled(LAST, cp=2)),
    "padding of tiles kept": (padding_kept, tiled()),
    "rows averaged between corners": (corners_averaged, tiled()),
    "learned row of one tp rank": (
        learned_row_of_one_rank, tiled(tp=2, sequence_parallel=True),
    ),
    "patches of another cp rank": (own_patches_only, tiled(cp=2)),
}  # fmt: skip
