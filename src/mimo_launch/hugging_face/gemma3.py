"""Gemma 3: the tower of SigLIP, whose patches are pooled, one linear map behind a norm, a decoder.

Decides: what the settings of the whole mean, and the names of the parts in its files; that the
tokens of an image attend to each other in both directions.
Relies on: `tower_and_decoder`; `vit` for the tower, `gemma3_text` for the decoder, and `llava` for
the names of the parts, which are the same.
Leaves: crops of large images (pan and scan) to nobody.

Source: `transformers` 5.23, models/gemma3; arXiv:2503.19786.
"""

from math import isqrt
from typing import Any

from mimo_launch.hugging_face import gemma3_text, llava, vit
from mimo_launch.hugging_face.family import Place
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.tower_and_decoder import TowerAndDecoder, tied_by_default
from mimo_launch.spec.spec import VitModel

_ROWS, _TOKENS = "mm_tokens_per_image", 256
_PROJECTOR = "multi_modal_projector."
_NAMES = {
    "projector.linear.weight": Place(f"{_PROJECTOR}mm_input_projection_weight", transposed=True),
    "projector.norm.weight": Place(f"{_PROJECTOR}mm_soft_emb_norm.weight"),
}


def _sides(config: Config, inner: Config) -> tuple[int, int]:
    """Return the sides of an image, in patches and in rows. Raises: ConfigError."""
    return vit.BY_TYPE[vit.SIGLIP].keys(inner)["image"][0], isqrt(
        int(number(config, _ROWS, _TOKENS))
    )


def _fixed(config: Config, inner: Config) -> dict[str, Any]:
    patches, rows = _sides(config, inner)
    shuffle = patches // max(1, rows)
    return {
        "shuffle": shuffle,
        "pooling": "mean" if shuffle > 1 else None,
        "final_norm": True,
        "projector": "linear",
        "projector_activation": "gelu",
        "projector_bias": False,
        "projector_norm_eps": number(inner, "layer_norm_eps", vit.KINDS[vit.SIGLIP].norm_eps),
        "projector_norm": "rms",
        "projector_norm_offset": True,
    }


def _is_uneven(config: Config) -> bool:
    patches, rows = _sides(config, config["vision_config"])
    return not rows or rows * rows != number(config, _ROWS, _TOKENS) or patches % rows != 0


def _settings(vision: VitModel, token: int) -> Config:
    height, width = vision.image or (0, 0)
    rows = height // vision.shuffle * (width // vision.shuffle)
    return {"image_token_index": token, _ROWS: rows}


WHOLE = TowerAndDecoder(
    model_type="gemma3",
    architecture="Gemma3ForConditionalGeneration",
    towers={vit.SIGLIP: vit.BY_TYPE[vit.SIGLIP]},
    text={gemma3_text.MODEL_TYPE: gemma3_text.TEXT},
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=_NAMES,
    fixed=_fixed,
    text_fixed={"bidirectional_images": True},
    refusals=refusals(
        where(_ROWS, "whose root does not divide the patches of a side", _is_uneven, _TOKENS)
    ),
    tied=tied_by_default(True),
    settings=_settings,
)
