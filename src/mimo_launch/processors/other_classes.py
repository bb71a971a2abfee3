"""What the files of an image processor that is not supported declare, for its own class to make.

Decides: that all its images have one height and width, which its files must say, since rows are
counted before pixels are made.
Relies on: `images` for the files of a folder.
Leaves: running the class to `data.samples.class_runner`.
"""

from pathlib import Path

from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.image_recipe import HALF, ImageRecipe
from mimo_launch.processors.images import pixels_of, read_processor
from mimo_launch.processors.resize_rules import Exact, Size

# Settings by which one image becomes several.
_CUTS = ("crop_to_patches", "do_image_splitting", "do_pan_and_scan", "slice_mode")


def recipe_of_class(folder: Path) -> ImageRecipe:
    """Return the size that a processor declares, and the folder with its class.

    Mean and deviation only serve to show images. Raises: ProcessorError.
    """
    config = {"image_mean": HALF, "image_std": HALF, **read_processor(folder)}
    size = _declared(config)
    cuts = next((key for key in _CUTS if config.get(key)), None)
    if size is None or cuts is not None:
        why = "declare no `size` with `height` and `width`, nor a `crop_size`, of every image"
        raise ProcessorError(
            f"its files {why if cuts is None else f'say `{cuts}: true`'}, but rows are counted "
            "before its class makes pixels; use a processor that makes one size, or another encoder"
        )
    try:
        return ImageRecipe(Exact(*size), made_by=folder, **pixels_of(config))
    except (TypeError, ValueError) as error:
        raise ProcessorError(f"its mean or deviation cannot be read: {error}") from error


def _declared(config: dict[str, object]) -> Size | None:
    """Return height and width of every image, None if its files do not say them."""
    keys = ("crop_size",) if config.get("do_center_crop") else ("size",)
    if not config.get("do_center_crop") and not config.get("do_resize", True):
        return None
    match config.get(keys[0]):
        case {"height": int(height), "width": int(width)} if min(height, width) > 0:
            return height, width
        case int(side) if keys == ("crop_size",) and side > 0:
            return side, side
    return None
