"""LLaVA and LLaVA-OneVision: a vision tower, a projector of two linear maps, and a decoder.

Sources: arXiv:2310.03744, arXiv:2408.03326; `transformers` 5.23, models/llava, with the first
prefixes in its files, and models/llava_onevision; other versions between 4.36 and 5 use the others.
"""

import re
from itertools import product
from math import prod
from typing import Any

from mimo_launch.hugging_face.families import llama, mistral, pixtral, qwen, siglip_clip
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import Refusal, only, refusals, where
from mimo_launch.hugging_face.tensors import Place, layers_at
from mimo_launch.hugging_face.towers import (
    ACTIVATION_REFUSED,
    PLAIN_PROJECTOR,
    activation_of_projector,
    theirs_of_projector,
)
from mimo_launch.hugging_face.wholes import (
    LAYERS,
    ONE_LAYER,
    TowerAndDecoder,
    features_as_written,
)
from mimo_launch.spec.spec import VitModel

_STRATEGY, _BIAS = "vision_feature_select_strategy", "multimodal_projector_bias"
_PROJECTOR = "multi_modal_projector."
VISION_NAMES = (
    ("vision_tower.", ""),
    ("vision_tower.vision_model.", ""),
    ("model.vision_tower.", ""),
    ("model.vision_tower.vision_model.", ""),
    (_PROJECTOR, _PROJECTOR),
    (f"model.{_PROJECTOR}", _PROJECTOR),
)
TEXT_NAMES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
)
PROJECTOR_LAYERS = {
    "projector.up": f"{_PROJECTOR}linear_1",
    "projector.down": f"{_PROJECTOR}linear_2",
}
# For a tower in which each state after a chosen layer becomes a row.
FIXED: dict[str, Any] = {
    "final_norm": False, "shuffle": 1, "projector": "mlp",
    "projector_activation": activation_of_projector, **PLAIN_PROJECTOR,
}  # fmt: skip


def _strategy_is_other(config: Config) -> bool:
    is_clip = config["vision_config"]["model_type"] == siglip_clip.CLIP.model_type
    return bool(config.get(_STRATEGY, "default") != ("default" if is_clip else "full"))


def tied_if_said(*configs: Config) -> bool:
    """Return whether a configuration, of the whole or of its text, ties the output layer."""
    return any(each.get("tie_word_embeddings") for each in configs)


REFUSED = refusals(
    LAYERS,
    # `default` leaves out the first token of an image, which is the class token of CLIP.
    where(_STRATEGY, "other than `default` of CLIP, `full`", _strategy_is_other, "default"),
    ACTIVATION_REFUSED,
    only(_BIAS, True),
)
# All layers of our tower are used.
SETTINGS: dict[str, Any] = {
    "image_seq_length": lambda vision: prod(vision.image or (1, 1)),
    "projector_hidden_act": theirs_of_projector,
    _BIAS: True,
    "vision_feature_layer": features_as_written,
    _STRATEGY: lambda vision: "default" if vision.class_token else "full",
}

LLAVA = TowerAndDecoder(
    model_type="llava",
    architecture="LlavaForConditionalGeneration",
    published=("llava-hf/llava-1.5-7b-hf",),
    # A folder without a type has a CLIP.
    towers=(siglip_clip.CLIP, siglip_clip.SIGLIP, pixtral.PIXTRAL),
    text=(llama.LLAMA, qwen.QWEN2, qwen.QWEN3, mistral.MISTRAL),
    tower_names=VISION_NAMES,
    text_names=TEXT_NAMES,
    projector=layers_at(PROJECTOR_LAYERS),
    feature_layer=-2,
    joins_layers=True,
    fixed=FIXED,
    refusals=REFUSED,
    tied=tied_if_said,
    token="image_token_index",
    settings=SETTINGS,
    notes="A LLaVA projects the states after one layer, without the last norm: "
    "`vision_feature_layer` -2 of 24 layers is `layers: 23`; later layers are ignored. A list of "
    "layers is `features`. With a "
    "Pixtral (Pixtral 12B) `shuffle` is 1, and there is no `pooling`.",
)
_NEWLINE, _RATIO = "image_newline", "anyres_max_9"
_PINS = "image_grid_pinpoints"
# The defaults of its configuration class, in pixels.
_USUAL = tuple((384 * down, 384 * right) for down, right in product(range(1, 7), repeat=2))
_ANYRES = re.compile(r"anyres_max_(\d+)")
Pins = tuple[tuple[int, int], ...]


def grids_of(config: Config, usual: Pins) -> Pins:
    """Return the grids in tiles; none if a side is not a multiple of a tile's."""
    side = number(config["vision_config"], "image_size", siglip_clip.IMAGE)
    pins = config.get(_PINS)
    pins = list(usual) if pins is None else pins
    if not isinstance(pins, list) or not all(_is_grid(each, side) for each in pins):
        return ()
    return tuple((down // side, right // side) for down, right in pins)


def _is_grid(pin: Any, side: float) -> bool:
    """Return whether a pair of sides in pixels holds whole tiles."""
    is_whole = isinstance(pin, list | tuple) and all(type(each) is int for each in pin)
    return is_whole and len(pin) == 2 and not any(each % side or each < side for each in pin)


def grids_refused(usual: Pins) -> Refusal:
    """Return the rule for grids; `usual` are those of a folder that says none."""
    return where(_PINS, "that are no grids of whole tiles", lambda x: not grids_of(x, usual))


def tiles_of(config: Config, usual: Pins, **more: Any) -> dict[str, Any]:
    """Return `tiles` of our tower, with `more` of its keys. Raises: ConfigError."""
    inner = config["vision_config"]
    side = number(inner, "image_size", siglip_clip.IMAGE)
    patch = siglip_clip.TOWERS[inner["model_type"]].keys(inner)["patch"]
    grids = grids_of(config, usual) or ((1, 1),)
    found = {"whole": "first", "grids": grids, "most": None, "each": False}
    return {**found, "side": side if side % patch else None, **more}


def _most(config: Config) -> int:
    """Return how many tiles keep all their rows, 0 for an unknown form of the setting."""
    found = _ANYRES.fullmatch(str(config.get("vision_aspect_ratio", _RATIO)))
    return int(found[1]) if found else 0


def pins_of(vision: VitModel) -> list[list[int]]:
    """Return the grids of our tower in pixels."""
    side, grids = vision.image_side, vision.tiles.grids if vision.tiles else ()
    return [[down * side, right * side] for down, right in grids]


NAMES_IN_TILES = (*VISION_NAMES, (_NEWLINE, _NEWLINE), (f"model.{_NEWLINE}", _NEWLINE))
PROJECTOR_IN_TILES = {
    **layers_at(PROJECTOR_LAYERS),
    "projector.newline.weight": Place(_NEWLINE),
}
LLAVA_ONEVISION = TowerAndDecoder(
    model_type="llava_onevision",
    architecture="LlavaOnevisionForConditionalGeneration",
    published=("llava-hf/llava-onevision-qwen2-7b-ov-hf",),
    towers=(siglip_clip.SIGLIP,),
    text=(qwen.QWEN2, llama.LLAMA, qwen.QWEN3, mistral.MISTRAL),
    tower_names=NAMES_IN_TILES,
    text_names=TEXT_NAMES,
    projector=PROJECTOR_IN_TILES,
    feature_layer=-1,
    fixed={**FIXED, "tiles": lambda x: tiles_of(x, _USUAL, most=_most(x) or None)},
    refusals=refusals(
        ONE_LAYER,
        only(_STRATEGY, "full"),
        ACTIVATION_REFUSED,
        only(_BIAS, True),
        grids_refused(_USUAL),
        where("vision_aspect_ratio", "other than `anyres_max_N`", lambda x: not _most(x), _RATIO),
    ),
    tied=tied_if_said,
    token="image_token_index",
    settings={
        _PINS: pins_of,
        "vision_aspect_ratio": lambda vision: (
            f"anyres_max_{None if vision.tiles is None else vision.tiles.most}"
        ),
        "projector_hidden_act": theirs_of_projector,
        _BIAS: True,
        "vision_feature_layer": -1,
        _STRATEGY: "full",
    },
    # One frame after another, without times.
    videos={"time": "none", "per_second": None},
    notes="`tiles.grids` are `image_grid_pinpoints` over `vision_config.image_size` (1 to 6 by 1 "
    "to 6 tiles of 384 pixels), `tiles.most` is N of `vision_aspect_ratio: anyres_max_N` (9), "
    "`tiles.side` is `image_size`, if that is not one of whole patches.",
)
