"""The vision transformers of DINOv2, with and without registers, for images of any size.

Sources: arXiv:2304.07193, arXiv:2309.16588; `transformers` 5.24, models/dinov2 and
models/dinov2_with_registers.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from mimo_launch.hugging_face.families.internvl import no_square, side_of
from mimo_launch.hugging_face.families.radio import (
    activation,
    activation_as_written,
    mlp_ratio,
    mlp_width,
)
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import one_of, refusals
from mimo_launch.hugging_face.settings import Computed, Settings
from mimo_launch.hugging_face.tensors import (
    MLP,
    Beyond,
    Dropped,
    Place,
    Reshaped,
    Tensors,
    in_layers,
    patches,
    positions,
)
from mimo_launch.hugging_face.towers import ACTIVATIONS, REST

_IMAGE, _PATCH, _SCALE = ("image_size", 224), ("patch_size", 14), ("layerscale_value", 1.0)
_WORDS = {"q": "query", "k": "key", "v": "value"}
_UNGATED = {"up": "fc1", "down": "fc2"}


def _patch(usual: int) -> Computed:
    return Computed(
        lambda config: side_of(config, _PATCH[0], usual),
        lambda model: {_PATCH[0]: model.patch},
        f"`{_PATCH[0]}`, once or twice; {usual}",
    )


def _image(config: Config) -> tuple[int, int]:
    side = side_of(config, *_IMAGE) // max(1, side_of(config, *_PATCH))
    return side, side


def _ratio(model: Any) -> Config:
    ((key, ratio),) = mlp_ratio(model).items()
    return {key: int(ratio) if ratio == int(ratio) else ratio}


def _mlp_layer(part: str, model: Any, _layer: int) -> Place:
    """`mlp.fc1`, `mlp.fc2`; gated ones `mlp.weights_in`, gate and up in turn, and `weights_out`."""
    if model.activation != "swiglu":
        return Place(f"mlp.{_UNGATED[part]}")
    if part == "down":
        return Place("mlp.weights_out")
    first = 0 if part == "gate" else model.mlp_width
    return Place("mlp.weights_in", first_row=first, num_rows=model.mlp_width)


DINOV2 = Family(
    model_type="dinov2",
    kind="vit",
    architecture="Dinov2Model",
    published=("facebook/dinov2-base", "facebook/dinov2-giant"),
    settings=Settings(
        {
            "layers": ("num_hidden_layers", 12),
            "hidden": ("hidden_size", 768),
            "heads": ("num_attention_heads", 12),
            "mlp": Computed(
                partial(mlp_width, hidden=768),
                _ratio,
                "`hidden_size` x `mlp_ratio` (4); gated two thirds of that, in steps of 8",
            ),
            "patch": _patch(14),
            "channels": ("num_channels", 3),
            "image": Computed(
                _image,
                lambda model: {_IMAGE[0]: model.image_side},
                f"`{_IMAGE[0]}` / `{_PATCH[0]}`, rounded down, twice; 224 pixels",
            ),
            "qkv_bias": ("qkv_bias", True),
            "layer_scale": Computed(
                lambda config: float(number(config, *_SCALE)),
                lambda model: {_SCALE[0]: model.layer_scale or _SCALE[1]},
                f"`{_SCALE[0]}`; 1",
            ),
            "norm_eps": ("layer_norm_eps", 1e-6),
            "activation": Computed(
                activation,
                activation_as_written,
                "`hidden_act`; `swiglu` with `use_swiglu_ffn`",
            ),
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
                    "attention_norm": "norm1",
                    "mlp_norm": "norm2",
                    **{f"attention.{x}": f"attention.attention.{_WORDS[x]}" for x in "qkv"},
                    "attention.o": "attention.output.dense",
                    **{f"mlp.{part}": partial(_mlp_layer, part) for part in MLP},
                    "attention_scale.weight": "layer_scale1.lambda1",
                    "mlp_scale.weight": "layer_scale2.lambda1",
                },
            ),
        },
        (
            Beyond("encoder.layer."),
            Dropped("layernorm.*", lambda model: not model.final_norm),
            Dropped("embeddings.mask_token"),
        ),
    ),
    refused=refusals(
        one_of("hidden_act", ACTIVATIONS, "gelu"),
        no_square(_IMAGE[0]),
        no_square(_PATCH[0]),
    ),
    random=("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"),
    prefixes=(("", ""), ("dinov2.", "")),
    may_end_early=True,
    notes="A folder has no projector, so ours keeps its initial values. A module may take only the "
    "first layers, and `final_norm` is free. Images have any size. The class token becomes no row.",
)
_REGISTERS = "embeddings.register_tokens"
DINOV2_WITH_REGISTERS = replace(
    DINOV2,
    model_type="dinov2_with_registers",
    architecture="Dinov2WithRegistersModel",
    published=("facebook/dinov2-with-registers-base",),
    settings=replace(
        DINOV2.settings.but({"patch": _patch(16), "registers": ("num_register_tokens", 4)}),
        rest={**DINOV2.settings.rest, "interpolation": "bicubic_averaged"},
    ),
    tensors=replace(
        DINOV2.tensors
        | {"registers.weight": Reshaped(_REGISTERS, lambda x: (1, x.registers, x.hidden))},
        dropped=(*DINOV2.tensors.dropped, Dropped(_REGISTERS, lambda model: not model.registers)),
    ),
    defaults={"patch_size": 16},
    prefixes=(("", ""), ("dinov2_with_registers.", "")),
    notes=f"{DINOV2.notes} Other images than those of `image_size` read the table with antialias "
    "(`interpolation: bicubic_averaged`). Registers become no row, too.",
)
