"""A tower of Ovis2, and known ways to get it wrong; `planted` lists them with the others."""

from typing import Any

from tests.support.shapes import plant
from tests.support.specs import box, spec

from mimo_launch.kinds.shapes import OneShape
from mimo_launch.kinds.tiles import IndicatorRule
from mimo_launch.models import ovis2_vision
from mimo_launch.models.tiled_rows import TiledRows
from mimo_launch.spec.spec import Spec

MODEL: dict[str, Any] = {
    "kind": "ovis2_vision", "layers": 2, "words": 13, "shuffle": 2, "image": [4, 2],
    "tiles": {"grids": [[1, 1], [1, 2], [2, 2]]},
}  # fmt: skip


def worded(
    vision: dict[str, Any], language: dict[str, Any] | None = None, /, **sections: Any
) -> Spec:
    """Such a tower before a decoder on the ranks after it, or on others; up to four tiles."""
    ranks = 1
    for axis in ("tp", "cp", "pp", "dp"):
        ranks *= vision.get(axis, 1)
    modules = {
        "vision": box(0, **{"model": MODEL, **vision}),
        "language": box(**{"first": ranks, **(language or {})}),
    }
    usual = {"microbatches": 2, "mbs": 2, "max_images": 2, "text_only": 0.2}
    return spec(modules, **{**usual, **sections})


def _ordered(wrong: Any) -> None:
    correct = IndicatorRule.order
    IndicatorRule.order = lambda self, shown: wrong(correct(self, shown))  # type: ignore[method-assign]


def lines_like_columns() -> None:
    """The learned row between tiles of a line also separates lines."""
    _ordered(lambda order: [-3 if each == -4 else each for each in order])


def ends_exchanged() -> None:
    """The learned row before an image comes after it, and the other way round."""
    _ordered(lambda order: [-6 - each if each in (-1, -5) else each for each in order])


def whole_image_last() -> None:
    """The tile of the whole image comes after the other tiles."""
    correct = TiledRows.forward

    def turned(self: Any, rows: Any, *given: Any) -> Any:
        return correct(self, rows.roll(2, dims=0), *given)

    TiledRows.forward = turned  # type: ignore[method-assign]


def shares_without_a_sum_of_one() -> None:
    """Words have independent shares."""
    ovis2_vision._softmax = lambda x: x.sigmoid()


def learned_rows_of_one_rank() -> None:
    """The gradient of learned rows is taken for complete on each tp rank."""
    plant(OneShape, "TiledRows", terms="complete")


def words_of_one_rank() -> None:
    """The gradient of the vectors of words is taken for complete on each tp rank."""
    plant(OneShape, "WordTable", terms="complete")


SPLIT = {"tp": 2, "cp": 2, "sequence_parallel": True}
SP = {"tp": 2, "sequence_parallel": True}
OVIS2_VISION_BUGS = {
    "Ovis2 lines like columns": (lines_like_columns, worded({"tp": 2})),
    "Ovis2 ends exchanged": (ends_exchanged, worded({"cp": 2})),
    "Ovis2 tiles of another place": (whole_image_last, worded({"pp": 2})),
    "Ovis2 shares without a sum": (shares_without_a_sum_of_one, worded({})),
    "Ovis2 learned rows of one tp rank": (learned_rows_of_one_rank, worded(SP)),
    "Ovis2 words of one tp rank": (words_of_one_rank, worded(SP)),
}
