"""Whether the processor of a folder cuts images into the tiles of an encoder.

Decides: which tiles are alike: of one size, on the same grids, parts of one image.
Relies on: `kinds.tiles` for the tiles of an encoder, `images` for those of a folder.
Leaves: the size of a row to `checks.shards`.
"""

from typing import TYPE_CHECKING

from mimo_launch.kinds.tiles import IndicatorRule, TileRule
from mimo_launch.spec.spec import Images

if TYPE_CHECKING:
    from mimo_launch.processors.image_recipe import ImageRecipe


def tiles_unlike(images: Images, rule: TileRule | None, recipe: "ImageRecipe") -> tuple[str, str]:
    """Return why the tiles of a recipe are not those of a model, and its grids as in a spec.

    Both are "" if they are the same, the second also if other grids would not help.
    """
    why = _other_parts(rule, recipe)
    if why or rule is None:
        return why, ""
    side = rule.side
    if recipe.only_size not in ((side, side), images.input_shape(rule.height, rule.width)[-2:]):
        return f"it does not make images of {side} x {side} pixels, as are the tiles", ""
    if any(each % side for grid in recipe.grids for each in grid):
        return f"its image_grid_pinpoints are not tiles of {side} pixels", ""
    made = _grids(rule, recipe)
    if made == sorted(set(rule.grids)):
        return "", ""
    listed = ", ".join(f"[{tall}, {wide}]" for tall, wide in made)
    return "it cuts images on other grids than those of `tiles`", f"grids: [{listed}]"


def _other_parts(rule: TileRule | None, recipe: "ImageRecipe") -> str:
    """Return why what a recipe cuts an image into is something else than in a model, or ""."""
    if recipe.tiled is not None and not isinstance(rule, IndicatorRule):
        between = "it cuts images into tiles with learned rows between them"
        return f"{between}, which only `kind: ovis2_vision` has"
    if recipe.cut is not None and rule is not None:
        return "it makes several images of one, but `tiles` are rows of one image"
    if recipe.grids and isinstance(rule, IndicatorRule):
        return "the rows of its tiles are those of one large image, not tile after tile"
    return ""


def _grids(rule: TileRule, recipe: "ImageRecipe") -> list[tuple[int, int]]:
    """Return the grids of tiles of a recipe by height and width, those of the model without any."""
    from mimo_launch.processors.cut_rules import grids_between

    if isinstance(rule, IndicatorRule):
        return [(1, 1)] if recipe.tiled is None else sorted(grids_between(*recipe.tiled.tiles))
    made = [(tall // rule.side, wide // rule.side) for tall, wide in recipe.grids]
    return sorted(set(made or rule.grids))
