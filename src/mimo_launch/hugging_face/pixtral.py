"""The tower of Pixtral: images of any size, rotary positions of rows and columns, no biases.

Decides: what its configuration means, which settings our ViT cannot compute, and the names of its
tensors.
Relies on: `config.json` as transformers 4 and 5 write it; defaults are those of its config class.
Leaves: the projector to `llava` and `mistral3`.

Sources: arXiv:2410.07073; `transformers` 5.23, models/pixtral.
"""

import re
from collections.abc import Iterator
from typing import Any

from mimo_launch.hugging_face.family import Family, Place
from mimo_launch.hugging_face.folder import Config, number, section, short
from mimo_launch.hugging_face.qwen_vl import THETA, vision_not_computed
from mimo_launch.hugging_face.refusals import Refusal, refusals
from mimo_launch.spec.spec import VitModel

MODEL_TYPE = "pixtral"
# Of every norm, in any configuration.
NORM_EPS = 1e-5
_ACTIVATIONS, _ACTIVATION = {"silu": "swiglu"}, "gelu"
_HIDDEN, _HEADS = 1024, 16
_LAYERS = {
    "attention_norm": "attention_norm",
    "mlp_norm": "ffn_norm",
    **{f"attention.{x}": f"attention.{x}_proj" for x in "qkvo"},
    **{f"mlp.{x}": f"feed_forward.{x}_proj" for x in ("gate", "up", "down")},
}
_LAYER = re.compile(r"transformer\.layers\.(\d+)\.")


def _head_size(config: Config) -> Iterator[str]:
    width = number(config, "hidden_size", _HIDDEN)
    heads = number(config, "num_attention_heads", _HEADS)
    if number(config, "head_dim", width // max(1, heads)) * heads != width:
        yield f"head_dim: {short(config['head_dim'])}"


def _ropes(config: Config) -> Config:
    """Return the configuration with its rotary settings where transformers 5 writes them."""
    older = {"rope_theta": config.get("rope_theta", THETA)}
    return {**config, "rope_parameters": older | section(config, "rope_parameters")}


def _keys(config: Config) -> dict[str, Any]:
    return {
        "layers": number(config, "num_hidden_layers", 24),
        "hidden": number(config, "hidden_size", _HIDDEN),
        "heads": number(config, "num_attention_heads", _HEADS),
        "mlp": number(config, "intermediate_size", 4096),
        "patch": number(config, "patch_size", 16),
        "channels": number(config, "num_channels", 3),
        "temporal_patch": 1,
        "positions": "rope2d",
        "rope_frequencies": "in_turn",
        "windows": None,
        "interpolation": "bicubic",
        "deepstack": (),
        "class_token": False,
        "registers": 0,
        "patch_bias": False,
        "qk_norm": False,
        "layer_scale": None,
        "qkv_bias": False,
        "block_bias": False,
        "norm": "rms",
        "norm_eps": NORM_EPS,
        "pre_norm": True,
        "final_norm": False,
        "activation": "swiglu",
    }


def _place(name: str, model: VitModel) -> Place:
    """Return the place of our tensor. Raises: KeyError for a name that the tower does not have."""
    if name == "patch.weight":
        sizes = (model.hidden, model.channels, model.patch, model.patch)
        return Place("patch_conv.weight", shape=sizes)
    if name == "pre_norm.weight":
        return Place("ln_pre.weight")
    if not name.startswith("layers."):
        raise KeyError(name)
    _, index, rest = name.split(".", 2)
    layer, _, kind = rest.rpartition(".")
    return Place(f"transformer.layers.{index}.{_LAYERS[layer]}.{kind}")


def _is_ignored(name: str, model: VitModel) -> bool:
    layer = _LAYER.match(name)
    return layer is not None and int(layer[1]) >= model.layers


def _config(model: VitModel) -> Config:
    """Return the configuration of our tower, as transformers 5 writes it."""
    return {
        "model_type": MODEL_TYPE,
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "head_dim": model.hidden // model.heads,
        "intermediate_size": model.mlp_width,
        "patch_size": model.patch,
        "num_channels": model.channels,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "axial", "rope_theta": THETA},
    }


VISION = Family(
    model_type=MODEL_TYPE,
    kind="vit",
    not_computed=vision_not_computed(_ACTIVATIONS, _ACTIVATION).after(_ropes)
    + refusals(Refusal("`head_dim` other than `hidden_size` / `num_attention_heads`", _head_size)),
    keys=_keys,
    place=_place,
    is_ignored=_is_ignored,
    config=_config,
    architecture="PixtralVisionModel",
)
