"""RADIO, a vision transformer with registers; images take a part of its table of positions.

Decides: what its configuration means, which settings our ViT cannot compute, and the names of its
tensors, as in NVIDIA's folders; transformers writes the same names.
Relies on: `settings` for the settings that towers share.
Leaves: its input conditioner, which normalises pixels, to `image_processor`; the summary of an
image, made of class tokens, is not supported.

Sources: arXiv:2312.06709, arXiv:2412.07679; `transformers` 5.23, models/radio.
"""

from functools import partial
from typing import Any

from mimo_launch.hugging_face import settings
from mimo_launch.hugging_face.family import Alone, Family, Place
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.names import QKV, Names, fused, in_layers, positions, qkv_rows
from mimo_launch.hugging_face.refusals import one_of, refusals, where
from mimo_launch.spec.spec import VitModel

RADIO = "radio"
HIDDEN, RATIO, PATCH = 1280, 4.0, 16
LARGEST, CLASS_TOKENS, REGISTERS, SCALE = 2048, 3, 7, 1.0
PREFIX = "radio_model."
_GENERATOR = "model.patch_generator."
_SIZES = settings.Settings({
    "layers": ("num_hidden_layers", 32), "hidden": ("hidden_size", HIDDEN),
    "heads": ("num_attention_heads", 16),
})  # fmt: skip


_UNGATED = {"up": "fc1", "down": "fc2"}


def _scale(number: int, _model: VitModel, _layer: int) -> Place:
    return Place(f"layer_scale{number}.lambda1", optional=True)


def _mlp_layer(part: str, model: VitModel, _layer: int) -> Place:
    return Place(f"mlp.{part}_proj" if model.activation == "swiglu" else f"mlp.{_UNGATED[part]}")


_NAMES = Names(
    {
        "patch.weight": f"{_GENERATOR}embedder.weight",
        "registers.weight": f"{_GENERATOR}cls_token.token",
        "positions.weight": positions(f"{_GENERATOR}pos_embed"),
    }
) | in_layers(
    "model.blocks.*.",
    {
        "attention_norm": "norm1",
        "mlp_norm": "norm2",
        **fused("attn.qkv", QKV, qkv_rows),
        "attention.o": "attn.proj",
        **{f"mlp.{part}": partial(_mlp_layer, part) for part in ("gate", "up", "down")},
        "attention_scale.weight": partial(_scale, 1),
        "mlp_scale.weight": partial(_scale, 2),
    },
)
# Numbers of its input conditioner and of the summary, and the embedding of patches of videos.
_UNUSED = ("input_conditioner.", "summary_idxs", f"{_GENERATOR}video_embedder.")


NOT_COMPUTED = refusals(
    one_of("hidden_act", settings.ACTIVATIONS, "gelu"),
    where(
        "max_img_size",
        "of no patch",
        lambda config: (
            (patch := number(config, "patch_size", PATCH)) < 1
            or number(config, "max_img_size", LARGEST) < patch
        ),
        LARGEST,
    ),
)


def _keys(config: Config) -> dict[str, Any]:
    sizes, patch = _SIZES.keys(config), number(config, "patch_size", PATCH)
    side = int(number(config, "max_img_size", LARGEST) // max(1, patch))
    tokens = (("num_cls_tokens", CLASS_TOKENS), ("num_registers", REGISTERS))
    is_gated = config.get("use_swiglu_ffn", False)
    inner = int(sizes["hidden"] * number(config, "mlp_ratio", RATIO))
    return {
        **sizes,
        # Gated MLPs have two thirds of the width, rounded up to a multiple of 8.
        "mlp": (int(inner * 2 / 3) + 7) // 8 * 8 if is_gated else inner,
        "patch": patch,
        "channels": number(config, "num_channels", 3),
        **settings.LEARNED,
        **settings.PLAIN,
        "interpolation": "cropped",
        "image": (side, side),
        "class_token": False,
        "registers": sum(number(config, *each) for each in tokens),
        "patch_bias": False,
        "pre_norm": False,
        "qkv_bias": bool(config.get("qkv_bias", True)),
        "layer_scale": float(number(config, "layerscale_value", SCALE)),
        "norm": "layer",
        "norm_eps": number(config, "layer_norm_eps", 1e-6),
        "final_norm": False,
        "activation": "swiglu" if is_gated else settings.activation_of(config),
    }


def _config(model: VitModel) -> Config:
    is_gated, hidden = model.activation == "swiglu", model.hidden
    inner = (3 * model.mlp_width + 1) // 2 if is_gated else model.mlp_width
    ratio = inner / hidden
    tokens = min(CLASS_TOKENS, model.registers)
    return {
        "model_type": RADIO,
        **_SIZES.config(model),
        # Its product with the width, rounded down, must be `inner` again.
        "mlp_ratio": ratio if int(ratio * hidden) == inner else (inner + 0.5) / hidden,
        "use_swiglu_ffn": is_gated,
        "hidden_act": settings.theirs(model.activation),
        "patch_size": model.patch,
        "num_channels": model.channels,
        "max_img_size": model.image_side,
        "num_cls_tokens": tokens,
        "num_registers": model.registers - tokens,
        "summary_idxs": list(range(min(2, tokens))),
        "qkv_bias": model.qkv_bias,
        "layerscale_value": model.layer_scale or SCALE,
        "layer_norm_eps": model.norm_eps,
    }


VISION = Family(
    model_type=RADIO,
    kind="vit",
    not_computed=NOT_COMPUTED,
    keys=_keys,
    place=_NAMES,
    is_ignored=lambda name, _: name.startswith(_UNUSED),
    config=_config,
    architecture="RadioModel",
    random=("attention_probs_dropout_prob", "drop_path_rate"),
)
FOLDER = Alone(VISION, ((PREFIX, ""),))
