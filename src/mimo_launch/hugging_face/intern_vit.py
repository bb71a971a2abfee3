"""InternViT, the vision transformer of InternVL: a class token, a table of positions, layer scale.

Decides: what its configuration means, which settings our ViT cannot compute, and the names of its
tensors.
Relies on: `vit` for settings that towers share.
Leaves: the projector to `internvl`.

Sources: arXiv:2312.14238; `transformers` 5.23, models/internvl.
"""

import re
from collections.abc import Iterator
from typing import Any

from mimo_launch.hugging_face import vit
from mimo_launch.hugging_face.family import Family, Place
from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.hugging_face.refusals import Refusal, one_of, only, refusals
from mimo_launch.spec.spec import VitModel

LAYERS, HEADS, HIDDEN, MLP, IMAGE, PATCH, CHANNELS, SCALE = 24, 16, 1024, 4096, 448, 14, 3, 0.1
# That of norms of queries and keys, in any configuration.
NORM_EPS = 1e-6
NORMS = {"layer_norm": "layer", "rms_norm": "rms"}
_TABLE, _TOKEN = "embeddings.position_embeddings", "embeddings.cls_token"
_ENDS = {"patch.bias": "embeddings.patch_embeddings.projection.bias"} | {
    f"norm.{kind}": f"layernorm.{kind}" for kind in ("weight", "bias")
}
_BLOCK = {
    "attention_norm": "layernorm_before",
    "mlp_norm": "layernorm_after",
    **{f"attention.{x}": f"attention.{x}_proj" for x in "qkv"},
    **{f"attention.{x}_norm": f"attention.{x}_norm" for x in "qk"},
    "attention.o": "attention.projection_layer",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
_SCALES = {"attention_scale": "lambda_1", "mlp_scale": "lambda_2"}
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.")


def _side(config: Config, key: str, default: int) -> int:
    """Return the side of a square, written once or twice. Raises: ConfigError."""
    said = config.get(key, default)
    first = said[0] if isinstance(said, list | tuple) and said else said
    return int(number({key: first}, key))


def _no_square(key: str) -> Refusal:
    def found(config: Config) -> Iterator[str]:
        said = config.get(key)
        if isinstance(said, list | tuple) and (len(said), len({*said})) != (2, 1):
            yield f"{key}: {short(said)}"

    return Refusal(f"`{key}` of two sizes", found)


def _other_eps(config: Config) -> Iterator[str]:
    if config.get("use_qk_norm") and config.get("layer_norm_eps", NORM_EPS) != NORM_EPS:
        yield f"layer_norm_eps: {short(config['layer_norm_eps'])} with use_qk_norm: true"


def _last_norm(config: Config) -> Iterator[str]:
    if config.get("norm_type") == "rms_norm" and not config.get("use_mean_pooling", True):
        yield "use_mean_pooling: false with norm_type: rms_norm"


NOT_COMPUTED = refusals(
    _no_square("image_size"),
    _no_square("patch_size"),
    one_of("hidden_act", vit.ACTIVATIONS, "gelu"),
    one_of("norm_type", NORMS, "layer_norm"),
    only("use_absolute_position_embeddings", True),
    Refusal(f"`layer_norm_eps` other than {NORM_EPS:g} with `use_qk_norm`", _other_eps),
    Refusal("`use_mean_pooling: false` with `norm_type: rms_norm`", _last_norm),
)


def _keys(config: Config) -> dict[str, Any]:
    patch = _side(config, "patch_size", PATCH)
    side = _side(config, "image_size", IMAGE) // max(1, patch)
    return {
        "layers": number(config, "num_hidden_layers", LAYERS),
        "hidden": number(config, "hidden_size", HIDDEN),
        "heads": number(config, "num_attention_heads", HEADS),
        "mlp": number(config, "intermediate_size", MLP),
        "patch": patch,
        "channels": number(config, "num_channels", CHANNELS),
        **vit.LEARNED,
        **vit.PLAIN,
        "image": (side, side),
        "class_token": True,
        "patch_bias": True,
        "pre_norm": False,
        "qkv_bias": bool(config.get("attention_bias", False)),
        "qk_norm": bool(config.get("use_qk_norm", False)),
        "layer_scale": number(config, "layer_scale_init_value", SCALE),
        "norm": NORMS.get(str(config.get("norm_type")), "layer"),
        "norm_eps": number(config, "layer_norm_eps", NORM_EPS),
        "final_norm": not config.get("use_mean_pooling", True),
        "activation": vit.ACTIVATIONS.get(str(config.get("hidden_act", "gelu")), "gelu"),
    }


def _place(name: str, model: VitModel) -> Place:
    """Return the place of our tensor `name`. Raises: KeyError."""
    if name == "patch.weight":
        sizes = (model.hidden, model.channels, model.patch, model.patch)
        return Place("embeddings.patch_embeddings.projection.weight", shape=sizes)
    if name == "positions.weight":
        height, width = model.image or (0, 0)
        return Place(_TABLE, shape=(1, 1 + height * width, model.hidden))
    if name == "class_token.weight":
        return Place(_TOKEN, shape=(1, 1, model.hidden))
    if name in _ENDS:
        return Place(_ENDS[name])
    if not name.startswith("layers."):
        raise KeyError(name)
    _, index, rest = name.split(".", 2)
    layer, _, kind = rest.rpartition(".")
    inner = _SCALES[layer] if layer in _SCALES else f"{_BLOCK[layer]}.{kind}"
    return Place(f"encoder.layer.{index}.{inner}")


def _is_ignored(name: str, model: VitModel) -> bool:
    """Return whether a tensor is of a layer after the end of our ViT, or of its training."""
    layer = _LAYER.match(name)
    beyond = layer is not None and int(layer[1]) >= model.layers
    unused = name.startswith("layernorm.") and not model.final_norm
    return beyond or unused or name == "embeddings.mask_token"


def _config(model: VitModel) -> Config:
    height, width = (side * model.patch for side in model.image or (0, 0))
    return {
        "model_type": VISION.model_type,
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "intermediate_size": model.mlp_width,
        "patch_size": [model.patch, model.patch],
        "image_size": [height, width],
        "num_channels": model.channels,
        "attention_bias": model.qkv_bias,
        "use_qk_norm": model.qk_norm,
        "layer_scale_init_value": model.layer_scale or SCALE,
        "norm_type": {ours: name for name, ours in NORMS.items()}[model.norm],
        "layer_norm_eps": model.norm_eps,
        "use_mean_pooling": not model.final_norm,
        "hidden_act": vit.theirs(model.activation),
    }


VISION = Family(
    model_type="internvl_vision",
    kind="vit",
    not_computed=NOT_COMPUTED,
    random=("attention_dropout", "projection_dropout", "hidden_dropout_prob"),
    keys=_keys,
    place=_place,
    is_ignored=_is_ignored,
    fits=lambda model: not list(NOT_COMPUTED(_config(model))),
    config=_config,
    architecture="InternVLVisionModel",
)
