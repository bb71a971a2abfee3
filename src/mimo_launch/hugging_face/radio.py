"""RADIO, a vision transformer with registers and a table of positions that images are cut from.

Decides: what its configuration means, which settings our ViT cannot compute, and the names of its
tensors: those of NVIDIA's folders, which transformers writes, too.
Relies on: `vit` for settings that towers share.
Leaves: its input conditioner, which normalises pixels, to `image_processor`; the summary of an
image, which is made of class tokens, to nobody.

Sources: arXiv:2312.06709, arXiv:2412.07679; `transformers` 5.23, models/radio.
"""

from collections.abc import Iterator
from typing import Any

from mimo_launch.hugging_face import vit
from mimo_launch.hugging_face.family import Family, NoSuchPart, Part, Place, layers_at, rows_of
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import Refusal, one_of, refusals
from mimo_launch.spec.spec import VitModel

RADIO = "radio"
LAYERS, HIDDEN, HEADS, RATIO, PATCH, CHANNELS = 32, 1280, 16, 4.0, 16, 3
LARGEST, CLASS_TOKENS, REGISTERS, NORM_EPS, SCALE = 2048, 3, 7, 1e-6, 1.0
PREFIX = "radio_model."
_GENERATOR = "model.patch_generator."
_BLOCK = layers_at({
    "attention_norm": "norm1", "mlp_norm": "norm2", "attention.o": "attn.proj", "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
})  # fmt: skip
_GATED = layers_at({f"mlp.{each}": f"mlp.{each}_proj" for each in ("gate", "up", "down")})
_SCALES = {"attention_scale": "layer_scale1.lambda1", "mlp_scale": "layer_scale2.lambda1"}
# Numbers of its input conditioner and of the summary, and the embedding of patches of videos.
_UNUSED = ("input_conditioner.", "summary_idxs", f"{_GENERATOR}video_embedder.")


def _no_table(config: Config) -> Iterator[str]:
    most, patch = number(config, "max_img_size", LARGEST), number(config, "patch_size", PATCH)
    if patch < 1 or most < patch:
        yield f"max_img_size: {most}"


NOT_COMPUTED = refusals(
    one_of("hidden_act", vit.ACTIVATIONS, "gelu"),
    Refusal("`max_img_size` of no patch", _no_table),
)


def _mlp(config: Config, hidden: float) -> int:
    """Return the width of the MLPs; of gated ones it is two thirds, in steps of 8."""
    inner = int(hidden * number(config, "mlp_ratio", RATIO))
    return (int(inner * 2 / 3) + 7) // 8 * 8 if config.get("use_swiglu_ffn", False) else inner


def _keys(config: Config) -> dict[str, Any]:
    hidden, patch = number(config, "hidden_size", HIDDEN), number(config, "patch_size", PATCH)
    side = int(number(config, "max_img_size", LARGEST) // max(1, patch))
    tokens = (("num_cls_tokens", CLASS_TOKENS), ("num_registers", REGISTERS))
    plain = vit.ACTIVATIONS.get(str(config.get("hidden_act", "gelu")), "gelu")
    return {
        "layers": number(config, "num_hidden_layers", LAYERS),
        "hidden": hidden,
        "heads": number(config, "num_attention_heads", HEADS),
        "mlp": _mlp(config, hidden),
        "patch": patch,
        "channels": number(config, "num_channels", CHANNELS),
        **vit.LEARNED,
        **vit.PLAIN,
        "interpolation": "cropped",
        "image": (side, side),
        "class_token": False,
        "registers": sum(number(config, *each) for each in tokens),
        "patch_bias": False,
        "pre_norm": False,
        "qkv_bias": bool(config.get("qkv_bias", True)),
        "layer_scale": float(number(config, "layerscale_value", SCALE)),
        "norm": "layer",
        "norm_eps": number(config, "layer_norm_eps", NORM_EPS),
        "final_norm": False,
        "activation": "swiglu" if config.get("use_swiglu_ffn", False) else plain,
    }


def _place(name: str, model: VitModel) -> Place:
    """Return the place of our tensor `name`. Raises: KeyError."""
    if name == "positions.weight":
        height, width = model.image or (0, 0)
        return Place(f"{_GENERATOR}pos_embed", shape=(1, height * width, model.hidden))
    if name in ("patch.weight", "registers.weight"):
        inner = {"patch.weight": "embedder.weight", "registers.weight": "cls_token.token"}[name]
        return Place(f"{_GENERATOR}{inner}")
    if not name.startswith("layers."):
        raise KeyError(name)
    _, index, rest = name.split(".", 2)
    layer, _, kind = rest.rpartition(".")
    block = f"model.blocks.{index}."
    if layer in _SCALES:
        return Place(block + _SCALES[layer], optional=True)
    if layer in (thirds := dict.fromkeys([f"attention.{x}" for x in "qkv"], model.hidden)):
        return Place(f"{block}attn.qkv.{kind}", *rows_of(thirds, layer))
    names = {**_BLOCK, **(_GATED if model.activation == "swiglu" else {})}
    return Place(block + names[rest].name)


def _config(model: VitModel) -> Config:
    is_gated, hidden = model.activation == "swiglu", model.hidden
    inner = (3 * model.mlp_width + 1) // 2 if is_gated else model.mlp_width
    ratio = inner / hidden
    tokens = min(CLASS_TOKENS, model.registers)
    return {
        "model_type": RADIO,
        "num_hidden_layers": model.layers,
        "hidden_size": hidden,
        "num_attention_heads": model.heads,
        # Rounded down it is to be the width again.
        "mlp_ratio": ratio if int(ratio * hidden) == inner else (inner + 0.5) / hidden,
        "use_swiglu_ffn": is_gated,
        "hidden_act": vit.theirs(model.activation),
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
    place=_place,
    is_ignored=lambda name, _: name.startswith(_UNUSED),
    config=_config,
    architecture="RadioModel",
    random=("attention_probs_dropout_prob", "drop_path_rate"),
)


def part(config: Config, kind: str) -> Part[VitModel]:
    """Return the tower of a folder that holds nothing else. Raises: NoSuchPart."""
    if kind != "vit":
        raise NoSuchPart(f"model_type: {RADIO}")
    return Part(family=VISION, config=config, prefixes=((PREFIX, ""),))
