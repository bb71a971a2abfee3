"""Gemma 3 that sees: a SigLIP whose patches are pooled, one linear map, and a decoder of Gemma 3.

Decides: what the settings of the whole mean, and the names of the parts in its files; that the
tokens of an image attend to each other in both directions.
Relies on: `tower_and_decoder`; `vit` for the tower, `gemma3_text` for the decoder; `llava` for the
names of the parts, which are the same.
Leaves: crops of large images (pan and scan) to nobody.

Source: `transformers` 5.23, models/gemma3; arXiv:2503.19786.
"""

from collections.abc import Iterator
from math import isqrt
from typing import Any

from mimo_launch.hugging_face import gemma3_text, llava, vit
from mimo_launch.hugging_face.family import Place
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import Refusal, refusals
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


def _uneven(config: Config) -> Iterator[str]:
    patches, rows = _sides(config, config["vision_config"])
    said = number(config, _ROWS, _TOKENS)
    if not rows or rows * rows != said or patches % rows:
        yield f"{_ROWS}: {said}"


def _settings(vision: VitModel, token: int) -> Config:
    height, width = vision.image or (0, 0)
    rows = height // vision.shuffle * (width // vision.shuffle)
    return {"image_token_index": token, _ROWS: rows}


WHOLE = TowerAndDecoder(
    model_type="gemma3",
    architecture="Gemma3ForConditionalGeneration",
    towers={vit.SIGLIP: vit.BY_TYPE[vit.SIGLIP]},
    text={gemma3_text.TEXT_TYPE: gemma3_text.TEXT},
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=_NAMES,
    fixed=_fixed,
    text_fixed={"bidirectional_images": True},
    refusals=refusals(
        Refusal(f"`{_ROWS}` whose root does not divide the patches of a side", _uneven)
    ),
    tied=tied_by_default(True),
    settings=_settings,
)
