"""LLaVA-OneVision: a SigLIP over tiles of an image, a projector of two linear maps, and a Qwen2.

Decides: what the settings of the whole mean: grids of tiles, and how many tiles keep all rows.
Relies on: `whole_models`; `vit` and `decoder` for the parts; `llava` for their names.
Leaves: which tiles an image gets to `kinds.tiles` and data.

Sources: arXiv:2408.03326; `transformers` 5.23, models/llava_onevision.
"""

import re
from itertools import product
from typing import Any

from mimo_launch.hugging_face import decoder, llava, vit
from mimo_launch.hugging_face.family import Place, layers_at
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import only, refusals, where
from mimo_launch.hugging_face.settings import ACTIVATION_REFUSED, theirs_of_projector
from mimo_launch.hugging_face.whole_models import (
    ONE_LAYER,
    TowerAndDecoder,
    tied_by_default,
)
from mimo_launch.spec.spec import VitModel

MODEL_TYPE = "llava_onevision"
_NEWLINE = "image_newline"
# The defaults of its configuration class, in pixels.
_USUAL = tuple((384 * down, 384 * right) for down, right in product(range(1, 7), repeat=2))
_RATIO = "anyres_max_9"
_ANYRES = re.compile(r"anyres_max_(\d+)")


def _grids(config: Config) -> tuple[tuple[int, int], ...]:
    """Return the grids in tiles; none if a side is not a multiple of a tile's."""
    side = number(config["vision_config"], "image_size", vit.IMAGE)
    pins = config.get("image_grid_pinpoints")
    pins = list(_USUAL) if pins is None else pins
    if not isinstance(pins, list) or not all(_is_grid(each, side) for each in pins):
        return ()
    return tuple((down // side, right // side) for down, right in pins)


def _is_grid(pin: Any, side: float) -> bool:
    """Return whether a pair of sides in pixels holds whole tiles."""
    is_whole = isinstance(pin, list | tuple) and all(type(each) is int for each in pin)
    return is_whole and len(pin) == 2 and not any(each % side or each < side for each in pin)


def _most(config: Config) -> int:
    """Return how many tiles keep all their rows, 0 for an unknown form of the setting."""
    found = _ANYRES.fullmatch(str(config.get("vision_aspect_ratio", _RATIO)))
    return int(found[1]) if found else 0


def _tiles(config: Config) -> dict[str, Any]:
    """Return `tiles` of our tower. Raises: ConfigError."""
    inner = config["vision_config"]
    side = number(inner, "image_size", vit.IMAGE)
    patch = number(inner, "patch_size", vit.KINDS[vit.SIGLIP].patch)
    return {
        "grids": _grids(config) or ((1, 1),),
        "most": _most(config) or None,
        "side": side if side % patch else None,
    }


def _pins(vision: VitModel) -> list[list[int]]:
    """Return the grids of our tower in pixels."""
    side, grids = vision.image_side, vision.tiles.grids if vision.tiles else ()
    return [[down * side, right * side] for down, right in grids]


def _ratio(vision: VitModel) -> str:
    """Return the setting for the number of tiles of our tower that keep all their rows."""
    most = None if vision.tiles is None else vision.tiles.most
    return f"anyres_max_{most}"


WHOLE = TowerAndDecoder(
    model_type=MODEL_TYPE,
    architecture="LlavaOnevisionForConditionalGeneration",
    towers={vit.SIGLIP: vit.BY_TYPE[vit.SIGLIP]},
    text={
        each.model_type: each
        for each in sorted(decoder.FAMILIES, key=lambda each: each.model_type != "qwen2")
    },
    tower_names=(*llava.VISION_NAMES, (_NEWLINE, _NEWLINE), (f"model.{_NEWLINE}", _NEWLINE)),
    text_names=llava.TEXT_NAMES,
    projector={**layers_at(llava.LAYERS), "projector.newline.weight": Place(_NEWLINE)},
    feature_layer=-1,
    fixed={**llava.FIXED, "tiles": _tiles},
    refusals=refusals(
        ONE_LAYER,
        only("vision_feature_select_strategy", "full"),
        ACTIVATION_REFUSED,
        only("multimodal_projector_bias", True),
        where(
            "image_grid_pinpoints",
            "that are no grids of whole tiles",
            lambda config: not _grids(config),
        ),
        where("vision_aspect_ratio", "other than `anyres_max_N`", lambda x: not _most(x), _RATIO),
    ),
    tied=tied_by_default(False),
    token="image_token_index",
    settings={
        "image_grid_pinpoints": _pins,
        "vision_aspect_ratio": _ratio,
        "projector_hidden_act": theirs_of_projector,
        "multimodal_projector_bias": True,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
    # One frame after another, without times.
    videos={"time": "none", "per_second": None},
)
