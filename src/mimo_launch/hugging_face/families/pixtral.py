"""Pixtral and Mistral 3: a tower for images of any size, and whole models with it.

Sources: arXiv:2410.07073; `transformers` 5.23, models/pixtral and models/mistral3.
"""

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.rotary import THETA
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.hugging_face.tensors import MLP, Beyond, Tensors, in_layers, patches
from mimo_launch.hugging_face.towers import GATED, REST, ROPES, axial_refusals

_WIDTH, _HEADS = ("hidden_size", 1024), ("num_attention_heads", 16)


def _has_other_heads(config: Config) -> bool:
    width, heads = number(config, *_WIDTH), number(config, *_HEADS)
    return number(config, "head_dim", width // max(1, heads)) * heads != width


def _with_rope(config: Config) -> Config:
    """Return a configuration with its rotary settings where transformers 5 writes them."""
    rope = {"rope_theta": config.get("rope_theta", THETA), **section(config, "rope_parameters")}
    return {**config, "rope_parameters": rope}


PIXTRAL = Family(
    model_type="pixtral",
    kind="vit",
    architecture="PixtralVisionModel",
    settings=Settings(
        {
            "layers": ("num_hidden_layers", 24),
            "hidden": _WIDTH,
            "heads": _HEADS,
            "mlp": ("intermediate_size", 4096),
            "patch": ("patch_size", 16),
            "channels": ("num_channels", 3),
        },
        written={
            "head_dim": lambda model: model.hidden // model.heads,
            "hidden_act": "silu",
            "rope_parameters": ROPES,
        },
        rest={
            **REST, "positions": "rope2d", "rope_frequencies": "in_turn", "patch_bias": False,
            "qkv_bias": False, "block_bias": False, "norm": "rms", "norm_eps": 1e-5,
            "pre_norm": True, "final_norm": False, "activation": "swiglu",
        },
    ),
    tensors=Tensors(
        {
            "patch.weight": patches("patch_conv.weight"),
            "pre_norm.weight": "ln_pre.weight",
            **in_layers(
                "transformer.layers.*.",
                {
                    "attention_norm": "attention_norm",
                    "mlp_norm": "ffn_norm",
                    **{f"attention.{x}": f"attention.{x}_proj" for x in "qkvo"},
                    **{f"mlp.{x}": f"feed_forward.{x}_proj" for x in MLP},
                },
            ),
        },
        (Beyond("transformer.layers."),),
    ),
    refused=axial_refusals(GATED, "gelu")
    + refusals(
        where("head_dim", "other than `hidden_size` / `num_attention_heads`", _has_other_heads)
    ),
    prepared=_with_rope,
    notes="Images have any size. Norms have an epsilon of 1e-5 in any configuration.",
)  # fmt: skip
