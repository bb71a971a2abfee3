"""Ovis2: a tower with a visual vocabulary, learned rows between its tiles, and a Qwen2.

Sources: arXiv:2405.20797; `transformers` 5.24, models/ovis2.
"""

from mimo_launch.hugging_face.families import aimv2, llava, qwen
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.refusals import Refusal, only, refusals, where
from mimo_launch.hugging_face.settings import Computed, Settings, defaults_of
from mimo_launch.hugging_face.tensors import Rows, Tensors
from mimo_launch.hugging_face.towers import REST
from mimo_launch.hugging_face.wholes import TowerAndDecoder
from mimo_launch.kinds.tiles import INDICATORS
from mimo_launch.spec.encoders import EncoderModel
from mimo_launch.spec.ovis2_vision import Ovis2VisionModel
from mimo_launch.spec.spec import DecoderModel, HybridModel

_STRIDE = ("hidden_stride", 1)
_WORDS, _LEARNED = ("vocab_size", 16384), "num_visual_indicator_tokens"
_TOKENS = "visual_indicator_token_ids"
_TABLE = "visual_embeddings_table."
_TEXT = {"hidden_size": 4096, "vocab_size": 151936}


def _has_part_of_row(config: Config) -> bool:
    """Return whether an image is not of whole squares of patches. Raises: ConfigError."""
    side = number(config, *aimv2.PATCH) * number(config, *_STRIDE)
    return bool(number(config, *aimv2.IMAGE) % max(1, side))


def _unlike_text(key: str, usual: int) -> Refusal:
    """Return the rule of a size of the output layer, which the whole and its text both say."""

    def is_refused(config: Config) -> bool:
        text = {**_TEXT, **section(config, "text_config")}
        return number(config, key, usual) != number(text, key)

    return where(key, "other than that of `text_config`", is_refused, usual)


def _rows(index: int) -> Rows:
    """Return the place of the vectors of words (0), or of the learned rows (1), in their table."""
    return Rows(f"{_TABLE}weight", index, lambda model: (model.words, INDICATORS))


def _has_other_ids(config: Config) -> bool:
    said = config.get(_TOKENS, [*range(INDICATORS)])
    return not isinstance(said, list | tuple) or len(said) != INDICATORS


OVIS2_VISION = Family(
    model_type="ovis2_vision",
    kind="ovis2_vision",
    architecture="Ovis2VisionModel",
    settings=Settings(
        {
            **aimv2.SIZES,
            "image": Computed(
                aimv2.grid,
                lambda model: {aimv2.IMAGE[0]: model.image_side},
                f"`{aimv2.IMAGE[0]}` / `{aimv2.PATCH[0]}`, twice; 224 pixels",
            ),
            "shuffle": _STRIDE,
            "words": Computed(
                lambda config: int(number(config, *_WORDS)) - INDICATORS,
                lambda model: {_WORDS[0]: model.words + INDICATORS, _LEARNED: INDICATORS},
                f"`{_WORDS[0]}` - `{_LEARNED}`; 16379",
            ),
        },
        {"hidden_act": "silu", "tokenize_function": "softmax"},
        {key: each for key, each in defaults_of(Ovis2VisionModel).items() if key in REST},
    ),
    tensors=Tensors(
        {
            **aimv2.tensors("transformer.", "patch_embedding"),
            "projector.head": "head_linear",
            "projector.head_norm": "head_norm",
        }
    ),
    refused=refusals(
        only("hidden_act", "silu"),
        only("tokenize_function", "softmax"),
        only(_LEARNED, INDICATORS),
        aimv2.BIASES_ALIKE,
        where(
            aimv2.IMAGE[0],
            f"other than a multiple of `{aimv2.PATCH[0]}` times `{_STRIDE[0]}`",
            _has_part_of_row,
            aimv2.IMAGE[1],
        ),
    ),
    notes="A folder of a tower alone has no vectors of words, so ours keep their initial values. "
    "The last five rows of the table of words are the learned rows of the module: those of "
    "`<IMG_START>`, `<IMG_GRID>`, `<IMG_COL>`, `<IMG_ROW>` and `<IMG_END>`.",
)


class _Ovis2(TowerAndDecoder):
    """A whole that repeats both sizes of its output layer."""

    def config_of(
        self,
        tower: Family,
        encoder: EncoderModel,
        words: Family,
        text: DecoderModel | HybridModel,
        token: int,
    ) -> Config:
        """Return the configuration of a whole model made of two of our modules."""
        config = TowerAndDecoder.config_of(self, tower, encoder, words, text, token)
        return config | {key: config["text_config"][key] for key in _TEXT}


OVIS2 = _Ovis2(
    model_type="ovis2",
    architecture="Ovis2ForConditionalGeneration",
    published=("thisisiron/Ovis2-1B-hf", "thisisiron/Ovis2-34B-hf"),
    towers=(OVIS2_VISION,),
    text=(qwen.QWEN2,),
    tower_names=(("model.vision_tower.", ""), (f"model.{_TABLE}", _TABLE)),
    text_names=llava.TEXT_NAMES[2:],
    projector={"projector.table.weight": _rows(0), "projector.indicators.weight": _rows(1)},
    fixed={},
    refusals=refusals(
        where(
            _TOKENS,
            "other than five ids",
            _has_other_ids,
        ),
        _unlike_text("hidden_size", 1536),
        _unlike_text("vocab_size", 151643),
    ),
    # The whole decides, whatever its text says.
    tied=lambda config, _text: bool(config.get("tie_word_embeddings", True)),
    token="image_token_id",
    notes="The tower emits the learned rows with those of an image, so all tokens that the "
    "processor of the model writes for an image are placeholders. Images are one tile; if the "
    "processor says `crop_to_patches: true`, as published ones do, write its grids in `tiles` of "
    "the module, which an error lists. Ids of learned rows in a text without an image are words.",
)
