"""InternVL: a vision transformer with layer scale, a projector after a norm, and a decoder.

Sources: arXiv:2312.14238, arXiv:2508.18265; `transformers` 5.23, models/internvl.
"""

from collections.abc import Iterator
from math import prod

from mimo_launch.hugging_face.families import llama, llava, mistral, qwen
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.hugging_face.refusals import Refusal, one_of, only, refusals, where
from mimo_launch.hugging_face.settings import Computed, Named, Settings
from mimo_launch.hugging_face.tensors import (
    Beyond,
    Dropped,
    Reshaped,
    Tensors,
    in_layers,
    layers_at,
    patches,
    positions,
)
from mimo_launch.hugging_face.towers import (
    ACTIVATION_REFUSED,
    ACTIVATIONS,
    PLAIN_PROJECTOR,
    REST,
    activation_of_projector,
    theirs_of_projector,
)
from mimo_launch.hugging_face.wholes import ONE_LAYER, TowerAndDecoder, tied_by_default

_IMAGE, _PATCH, _SCALE = ("image_size", 448), ("patch_size", 14), ("layer_scale_init_value", 0.1)
# For the norms of queries and keys, in any configuration.
_NORM_EPS = 1e-6
_NORMS = {"layer_norm": "layer", "rms_norm": "rms"}


def side_of(config: Config, key: str, default: int) -> int:
    """Return the side of a square, written once or twice. Raises: ConfigError."""
    said = config.get(key, default)
    first = said[0] if isinstance(said, list | tuple) and said else said
    return int(number({key: first}, key))


def _image(config: Config) -> tuple[int, int]:
    side = side_of(config, *_IMAGE) // max(1, side_of(config, *_PATCH))
    return (side, side)


def no_square(key: str) -> Refusal:
    """Return the rule of a square whose two sides may differ."""

    def is_refused(config: Config) -> bool:
        said = config.get(key)
        return isinstance(said, list | tuple) and (len(said), len({*said})) != (2, 1)

    return where(key, "of two sizes", is_refused)


def _last_norm(config: Config) -> Iterator[str]:
    if config.get("norm_type") == "rms_norm" and not config.get("use_mean_pooling", True):
        yield "use_mean_pooling: false with norm_type: rms_norm"


INTERN_VIT = Family(
    model_type="internvl_vision",
    kind="vit",
    architecture="InternVLVisionModel",
    settings=Settings(
        {
            "layers": ("num_hidden_layers", 24),
            "hidden": ("hidden_size", 1024),
            "heads": ("num_attention_heads", 16),
            "mlp": ("intermediate_size", 4096),
            "patch": Computed(
                lambda config: side_of(config, *_PATCH),
                lambda model: {"patch_size": [model.patch, model.patch]},
                "`patch_size`, once or twice; 14",
            ),
            "channels": ("num_channels", 3),
            "image": Computed(
                _image,
                lambda model: {"image_size": [x * model.patch for x in model.image or (0, 0)]},
                "`image_size` / `patch_size`; 448 pixels",
            ),
            "qkv_bias": ("attention_bias", False),
            "qk_norm": ("use_qk_norm", False),
            "layer_scale": Computed(
                lambda config: number(config, *_SCALE),
                lambda model: {_SCALE[0]: model.layer_scale or _SCALE[1]},
                f"`{_SCALE[0]}`; {_SCALE[1]}",
            ),
            "norm": Named("norm_type", _NORMS, "layer_norm"),
            "norm_eps": ("layer_norm_eps", _NORM_EPS),
            "final_norm": Computed(
                lambda config: not config.get("use_mean_pooling", True),
                lambda model: {"use_mean_pooling": not model.final_norm},
                "not `use_mean_pooling`; `false`",
            ),
            "activation": Named("hidden_act", ACTIVATIONS, "gelu"),
        },
        rest={**REST, "positions": "learned", "class_token": True},
    ),
    tensors=Tensors(
        {
            "patch.weight": patches("embeddings.patch_embeddings.projection.weight"),
            "patch.bias": "embeddings.patch_embeddings.projection.bias",
            "positions.weight": positions("embeddings.position_embeddings", tokens=1),
            "class_token.weight": Reshaped("embeddings.cls_token", lambda x: (1, 1, x.hidden)),
            "norm": "layernorm",
            **in_layers(
                "encoder.layer.*.",
                {
                    "attention_norm": "layernorm_before",
                    "mlp_norm": "layernorm_after",
                    **{f"attention.{x}": f"attention.{x}_proj" for x in "qkv"},
                    **{f"attention.{x}_norm": f"attention.{x}_norm" for x in "qk"},
                    "attention.o": "attention.projection_layer",
                    "mlp.up": "mlp.fc1",
                    "mlp.down": "mlp.fc2",
                    "attention_scale.weight": "lambda_1",
                    "mlp_scale.weight": "lambda_2",
                },
            ),
        },
        (
            Beyond("encoder.layer."),
            Dropped("layernorm.*", lambda model: not model.final_norm),
            # Only for training.
            Dropped("embeddings.mask_token"),
        ),
    ),
    refused=refusals(
        no_square("image_size"),
        no_square("patch_size"),
        one_of("hidden_act", ACTIVATIONS, "gelu"),
        one_of("norm_type", _NORMS, "layer_norm"),
        only("use_absolute_position_embeddings", True),
        where(
            "layer_norm_eps",
            f"other than {_NORM_EPS:g} with `use_qk_norm`",
            lambda config: (
                config.get("use_qk_norm", False)
                and config.get("layer_norm_eps", _NORM_EPS) != _NORM_EPS
            ),
            beside="use_qk_norm: true",
        ),
        Refusal("`use_mean_pooling: false` with `norm_type: rms_norm`", _last_norm),
    ),
    random=("attention_dropout", "projection_dropout", "hidden_dropout_prob"),
)
_RATIO = ("downsample_ratio", 0.5)


def shuffle_of(config: Config) -> int:
    """Return the side, in patches, of the square that becomes one row. Raises: ConfigError."""
    ratio = float(number(config, *_RATIO))
    return max(1, int(1 / ratio)) if ratio > 0 else 1


def _ratio_refused(config: Config) -> Iterator[str]:
    ratio = float(number(config, *_RATIO))
    if ratio <= 0 or 1 / ratio != int(1 / ratio):
        yield f"downsample_ratio: {short(ratio)}"


RATIO_REFUSED = Refusal("`downsample_ratio` that is no 1 / N", _ratio_refused)
INTERNVL = TowerAndDecoder(
    model_type="internvl",
    architecture="InternVLForConditionalGeneration",
    published=("OpenGVLab/InternVL3-1B-hf",),
    towers=(INTERN_VIT,),
    text=(
        *(qwen.QWEN2, llama.LLAMA, qwen.QWEN3, mistral.MISTRAL),
        *(mistral.MIXTRAL, qwen.QWEN3_MOE),
    ),
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=layers_at(
        {**llava.PROJECTOR_LAYERS, "projector.norm": "multi_modal_projector.layer_norm"}
    ),
    feature_layer=-1,
    fixed={
        # The norm after the last layer is not part of the layers' states.
        "final_norm": lambda config: (
            config.get("vision_feature_layer", -1) == -1
            and not config["vision_config"].get("use_mean_pooling", True)
        ),
        "shuffle": shuffle_of,
        "projector": "mlp",
        "projector_activation": activation_of_projector,
        **PLAIN_PROJECTOR,
        # For the norm before the projector, in any configuration.
        "projector_norm_eps": 1e-5,
        "projector_norm": "layer",
    },
    refusals=refusals(
        ONE_LAYER,
        RATIO_REFUSED,
        only("vision_feature_select_strategy", "default"),
        ACTIVATION_REFUSED,
    ),
    tied=tied_by_default(True),
    token="image_token_id",
    settings={
        "image_seq_length": lambda vision: prod(
            x // vision.shuffle for x in vision.image or (0, 0)
        ),
        "downsample_ratio": lambda vision: 1 / vision.shuffle,
        "projector_hidden_act": theirs_of_projector,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
    },
    # Each frame is an image after its number.
    videos={"time": "text_number", "per_second": None},
    notes="`shuffle` is 1 / `downsample_ratio`. The processor cuts an image into up to 12 tiles of "
    "448 x 448 and adds a thumbnail, each a separate image ([Tiles](media.md#tiles)); "
    "`max_patches: 1` in `preprocessor_config.json` makes one tile. `transformers` takes square "
    "images only; here any whole rows do. Without `tie_word_embeddings`, beside `text_config` or "
    "in it, the output layer is the embedding.",
)
