"""The tower of Pixtral: images of any size, rotary positions of rows and columns, no biases.

Decides: what its configuration means, which settings our ViT cannot compute, and the names of its
tensors.
Relies on: `config.json` as transformers 4 and 5 write it, with the defaults of its config class.
Leaves: the projector to `llava` and `mistral3`.

Sources: arXiv:2410.07073; `transformers` 5.23, models/pixtral.
"""

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.names import Names, in_layers, is_behind, patches
from mimo_launch.hugging_face.qwen_vl import ROPES, THETA, vision_not_computed
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.settings import Settings

MODEL_TYPE = "pixtral"
# For every norm, in any configuration.
NORM_EPS = 1e-5
_ACTIVATIONS, _ACTIVATION = {"silu": "swiglu"}, "gelu"
_HIDDEN, _HEADS = 1024, 16
_SETTINGS = Settings(
    {
        "layers": ("num_hidden_layers", 24),
        "hidden": ("hidden_size", _HIDDEN),
        "heads": ("num_attention_heads", _HEADS),
        "mlp": ("intermediate_size", 4096),
        "patch": ("patch_size", 16),
        "channels": ("num_channels", 3),
    },
    besides={
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
    },
    written={
        "model_type": MODEL_TYPE,
        "head_dim": lambda model: model.hidden // model.heads,
        "hidden_act": "silu",
        "rope_parameters": ROPES,
    },
)
_NAMES = Names(
    {"patch.weight": patches("patch_conv.weight"), "pre_norm.weight": "ln_pre.weight"}
) | in_layers(
    "transformer.layers.*.",
    {
        "attention_norm": "attention_norm",
        "mlp_norm": "ffn_norm",
        **{f"attention.{x}": f"attention.{x}_proj" for x in "qkvo"},
        **{f"mlp.{x}": f"feed_forward.{x}_proj" for x in ("gate", "up", "down")},
    },
)


def _has_other_heads(config: Config) -> bool:
    width = number(config, "hidden_size", _HIDDEN)
    heads = number(config, "num_attention_heads", _HEADS)
    return number(config, "head_dim", width // max(1, heads)) * heads != width


VISION = Family(
    model_type=MODEL_TYPE,
    kind="vit",
    not_computed=vision_not_computed(_ACTIVATIONS, _ACTIVATION).after(
        # With its rotary settings where transformers 5 writes them.
        lambda config: {
            **config,
            "rope_parameters": {
                "rope_theta": config.get("rope_theta", THETA),
                **section(config, "rope_parameters"),
            },
        }
    )
    + refusals(
        where("head_dim", "other than `hidden_size` / `num_attention_heads`", _has_other_heads)
    ),
    keys=_SETTINGS.keys,
    place=_NAMES,
    is_ignored=lambda name, model: is_behind(name, "transformer.layers.", model.layers),
    config=_SETTINGS.config,
    architecture="PixtralVisionModel",
)
