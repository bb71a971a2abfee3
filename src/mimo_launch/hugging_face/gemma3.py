"""Gemma 3: the tower of SigLIP with pooled patches, a norm and one linear map, a decoder.

Decides: what the settings of the whole mean, and the names of the parts in its files; that the
tokens of an image attend to each other in both directions.
Relies on: `whole_models`; `vit` for the tower, `gemma3_text` for the decoder, and `llava` for
the names of the parts, which are the same.
Leaves: nothing; crops of large images (pan and scan) are not supported.

Source: `transformers` 5.23, models/gemma3; arXiv:2503.19786.
"""

from math import isqrt, prod

from mimo_launch.hugging_face import gemma3_text, llava, vit
from mimo_launch.hugging_face.family import Place
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.whole_models import TowerAndDecoder, tied_by_default

_ROWS, _TOKENS = "mm_tokens_per_image", 256
_PROJECTOR = "multi_modal_projector."
_NAMES = {
    "projector.linear.weight": Place(f"{_PROJECTOR}mm_input_projection_weight", transposed=True),
    "projector.norm.weight": Place(f"{_PROJECTOR}mm_soft_emb_norm.weight"),
}


def _sides(config: Config) -> tuple[int, int]:
    """Return the sides of an image, in patches and in rows. Raises: ConfigError."""
    patches = vit.BY_TYPE[vit.SIGLIP].keys(config["vision_config"])["image"][0]
    return patches, isqrt(int(number(config, _ROWS, _TOKENS)))


def _shuffle(config: Config) -> int:
    """Return the side, in patches, of the square that becomes a row. Raises: ConfigError."""
    patches, rows = _sides(config)
    return patches // max(1, rows)


def _is_uneven(config: Config) -> bool:
    patches, rows = _sides(config)
    return not rows or rows * rows != number(config, _ROWS, _TOKENS) or patches % rows != 0


WHOLE = TowerAndDecoder(
    model_type="gemma3",
    architecture="Gemma3ForConditionalGeneration",
    towers={vit.SIGLIP: vit.BY_TYPE[vit.SIGLIP]},
    text={gemma3_text.MODEL_TYPE: gemma3_text.TEXT},
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=_NAMES,
    fixed={
        "shuffle": _shuffle,
        "pooling": lambda config: "mean" if _shuffle(config) > 1 else None,
        "final_norm": True,
        "projector": "linear",
        "projector_activation": "gelu",
        "projector_bias": False,
        "projector_norm_eps": lambda config: number(
            config["vision_config"], "layer_norm_eps", vit.KINDS[vit.SIGLIP].norm_eps
        ),
        "projector_norm": "rms",
        "projector_norm_offset": True,
    },
    text_fixed={"bidirectional_images": True},
    refusals=refusals(
        where(_ROWS, "whose root does not divide the patches of a side", _is_uneven, _TOKENS)
    ),
    tied=tied_by_default(True),
    token="image_token_index",
    settings={
        _ROWS: lambda vision: prod(side // vision.shuffle for side in vision.image or (0, 0)),
    },
)
