"""InternViT, the vision transformer of InternVL: a class token, a table of positions, layer scale.

Decides: what its configuration means, which settings our ViT cannot compute, and the names of its
tensors.
Relies on: `settings` for the settings that towers share.
Leaves: the projector to `internvl`.

Sources: arXiv:2312.14238; `transformers` 5.23, models/internvl.
"""

from collections.abc import Iterator
from typing import Any

from mimo_launch.hugging_face import settings
from mimo_launch.hugging_face.family import Family, Place
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.names import Names, in_layers, is_behind, patches, positions
from mimo_launch.hugging_face.refusals import Refusal, one_of, only, refusals, where
from mimo_launch.spec.spec import VitModel

LAYERS, IMAGE, PATCH, SCALE = 24, 448, 14, 0.1
# For the norms of queries and keys, in any configuration.
NORM_EPS = 1e-6
NORMS = {"layer_norm": "layer", "rms_norm": "rms"}
_SIZES = settings.Settings({
    "layers": ("num_hidden_layers", LAYERS), "hidden": ("hidden_size", 1024),
    "heads": ("num_attention_heads", 16), "mlp": ("intermediate_size", 4096),
})  # fmt: skip
_PARTS = settings.Settings(
    {"qkv_bias": ("attention_bias", False), "qk_norm": ("use_qk_norm", False)}
)
_NAMES = Names(
    {
        "patch.weight": patches("embeddings.patch_embeddings.projection.weight"),
        "patch.bias": "embeddings.patch_embeddings.projection.bias",
        "positions.weight": positions("embeddings.position_embeddings", tokens=1),
        "class_token.weight": lambda x: Place("embeddings.cls_token", shape=(1, 1, x.hidden)),
        "norm": "layernorm",
    }
) | in_layers(
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
)


def _side(config: Config, key: str, default: int) -> int:
    """Return the side of a square, written once or twice. Raises: ConfigError."""
    said = config.get(key, default)
    first = said[0] if isinstance(said, list | tuple) and said else said
    return int(number({key: first}, key))


def _no_square(key: str) -> Refusal:
    def is_refused(config: Config) -> bool:
        said = config.get(key)
        return isinstance(said, list | tuple) and (len(said), len({*said})) != (2, 1)

    return where(key, "of two sizes", is_refused)


def _last_norm(config: Config) -> Iterator[str]:
    if config.get("norm_type") == "rms_norm" and not config.get("use_mean_pooling", True):
        yield "use_mean_pooling: false with norm_type: rms_norm"


NOT_COMPUTED = refusals(
    _no_square("image_size"),
    _no_square("patch_size"),
    one_of("hidden_act", settings.ACTIVATIONS, "gelu"),
    one_of("norm_type", NORMS, "layer_norm"),
    only("use_absolute_position_embeddings", True),
    where(
        "layer_norm_eps",
        f"other than {NORM_EPS:g} with `use_qk_norm`",
        lambda config: (
            config.get("use_qk_norm", False) and config.get("layer_norm_eps", NORM_EPS) != NORM_EPS
        ),
        beside="use_qk_norm: true",
    ),
    Refusal("`use_mean_pooling: false` with `norm_type: rms_norm`", _last_norm),
)


def _keys(config: Config) -> dict[str, Any]:
    patch = _side(config, "patch_size", PATCH)
    side = _side(config, "image_size", IMAGE) // max(1, patch)
    return {
        **_SIZES.keys(config),
        "patch": patch,
        "channels": number(config, "num_channels", 3),
        **settings.LEARNED,
        **settings.PLAIN,
        "image": (side, side),
        "class_token": True,
        "patch_bias": True,
        "pre_norm": False,
        **_PARTS.keys(config),
        "layer_scale": number(config, "layer_scale_init_value", SCALE),
        "norm": NORMS.get(str(config.get("norm_type")), "layer"),
        "norm_eps": number(config, "layer_norm_eps", NORM_EPS),
        "final_norm": not config.get("use_mean_pooling", True),
        "activation": settings.activation_of(config),
    }


def _is_ignored(name: str, model: VitModel) -> bool:
    """Return whether a tensor is of a layer after our ViT's last one, or only for training."""
    unused = name.startswith("layernorm.") and not model.final_norm
    is_beyond = is_behind(name, "encoder.layer.", model.layers)
    return is_beyond or unused or name == "embeddings.mask_token"


def _config(model: VitModel) -> Config:
    return {
        "model_type": VISION.model_type,
        **_SIZES.config(model),
        "patch_size": [model.patch, model.patch],
        "image_size": [side * model.patch for side in model.image or (0, 0)],
        "num_channels": model.channels,
        **_PARTS.config(model),
        "layer_scale_init_value": model.layer_scale or SCALE,
        "norm_type": {ours: name for name, ours in NORMS.items()}[model.norm],
        "layer_norm_eps": model.norm_eps,
        "use_mean_pooling": not model.final_norm,
        "hidden_act": settings.theirs(model.activation),
    }


VISION = Family(
    model_type="internvl_vision",
    kind="vit",
    not_computed=NOT_COMPUTED,
    random=("attention_dropout", "projection_dropout", "hidden_dropout_prob"),
    keys=_keys,
    place=_NAMES,
    is_ignored=_is_ignored,
    fits=lambda model: not list(NOT_COMPUTED(_config(model))),
    config=_config,
    architecture="InternVLVisionModel",
)
