"""Qwen2-VL: a vision transformer for images of any size, and a Qwen2 decoder with M-RoPE.

Decides: what the two parts of its configuration mean, and the names and places of their tensors in
a folder.
Relies on: `decoder` for all that the text part shares with Qwen2.
Leaves: finding the folder's parts to `registry`.

Sources: arXiv:2409.12191; `transformers` 5.23, models/qwen2_vl. The first prefixes are those of its
files; versions from 4.52 to 5 have the others.
"""

import re
from collections.abc import Iterator
from typing import Any

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.family import Family, NoSuchPart, Part, Place, differs
from mimo_launch.hugging_face.folder import Config, ConfigError, number, section, short
from mimo_launch.hugging_face.vit import ACTIVATIONS
from mimo_launch.spec.spec import DecoderModel, VitModel

MODEL_TYPE = "qwen2_vl"
TEXT, VISION = "qwen2_vl_text", "qwen2_vl_vision"
SECTIONS = (16, 24, 24)
NORM_EPS = 1e-6
_TEXT_DEFAULTS = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
_VISION_NAMES = (("visual.", ""), ("model.visual.", ""))
_TEXT_NAMES = (
    ("model.", "model."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
)
_LANGUAGE = ("embed_tokens", "layers", "norm")
_ENDS = {
    "norm": "merger.ln_q",
    "projector.up": "merger.mlp.0",
    "projector.down": "merger.mlp.2",
}
_BLOCK = {
    "attention_norm": "norm1",
    "mlp_norm": "norm2",
    "attention.o": "attn.proj",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
_FREQUENCIES = re.compile(r"rotary_pos_emb\.inv_freq$")


def text_keys(config: Config) -> dict[str, Any]:
    """Return the text part as keys of a decoder. Raises: ConfigError."""
    keys = decoder.keys(decoder.KINDS["qwen2"], _plain(config))
    sections = decoder.rope_settings(config).get("mrope_section", SECTIONS)
    is_list = isinstance(sections, list | tuple)
    if not is_list or not all(isinstance(each, int) for each in sections):
        raise ConfigError(f"`mrope_section` is {short(sections)}, not a list of numbers")
    return {**keys, "mrope": tuple(sections)}


def text_not_computed(config: Config) -> Iterator[str]:
    """Yield, as `key: value`, the settings of the text part that our decoder cannot compute."""
    yield from decoder.not_computed(_plain(config))


def text_config(model: DecoderModel) -> Config:
    """Return the text part of a configuration, as transformers 5 writes it."""
    config = decoder.config_of(TEXT, model)
    # Its attention ignores this setting: the size of a head is hidden / heads.
    del config["head_dim"]
    config["rope_parameters"]["mrope_section"] = list(model.mrope or ())
    return config


def text_fits(model: DecoderModel) -> bool:
    """Return whether our decoder is the text part of a Qwen2-VL."""
    whole_heads = model.head_size * model.heads == model.hidden
    return model.qkv_bias and not model.qk_norm and model.mrope is not None and whole_heads


def _plain(config: Config) -> Config:
    """Return the configuration as that of a Qwen2, whose rotary types do not include M-RoPE."""
    rope = decoder.rope_settings(config)
    if rope.get("rope_type", rope.get("type")) == "mrope":
        rope = rope | {"rope_type": "default"}
    plain = {key: value for key, value in config.items() if key not in ("head_dim", "rope_scaling")}
    return _TEXT_DEFAULTS | plain | {"rope_parameters": rope}


def vision_keys(config: Config) -> dict[str, Any]:
    """Return the vision part as keys of a ViT. Raises: ConfigError."""
    width = number(config, "embed_dim", 1280)
    channels = config.get("in_chans", 3)
    return {
        "layers": number(config, "depth", 32),
        "hidden": width,
        "heads": number(config, "num_heads", 16),
        "patch": number(config, "patch_size", 14),
        "channels": number(config, "in_channels", channels),
        "mlp": int(width * number(config, "mlp_ratio", 4)),
        "shuffle": number(config, "spatial_merge_size", 2),
        "temporal_patch": number(config, "temporal_patch_size", 2),
        "positions": "rope2d",
        "class_token": False,
        "patch_bias": False,
        "pre_norm": False,
        "final_norm": True,
        "norm_eps": NORM_EPS,
        "activation": ACTIVATIONS[_activation(config)],
        "projector": "merger",
        "projector_activation": "gelu",
    }


def vision_not_computed(config: Config) -> Iterator[str]:
    """Yield, as `key: value`, the settings of the vision part that our ViT cannot compute."""
    if _activation(config) not in ACTIVATIONS:
        yield f"hidden_act: {short(config['hidden_act'])}"
    if differs(config, "quantization_config", None):
        yield f"quantization_config: {short(config['quantization_config'])}"
    rope = section(config, "rope_parameters")
    for key, only in (("rope_type", "axial"), ("rope_theta", 10000.0)):
        if differs(rope, key, only):
            yield f"{key}: {short(rope[key])}"


def vision_place(name: str, model: VitModel) -> Place:
    """Return the place of our tensor `name`, which is given without the module.

    Raises: KeyError for a name that such a ViT does not have.
    """
    layer, _, kind = name.rpartition(".")
    if name == "patch.weight":
        sides = (model.temporal_patch, model.patch, model.patch)
        return Place("patch_embed.proj.weight", shape=(model.hidden, model.channels, *sides))
    if layer in _ENDS:
        return Place(f"{_ENDS[layer]}.{kind}")
    if not layer.startswith("layers."):
        raise KeyError(name)
    _, index, part = layer.split(".", 2)
    if part.removeprefix("attention.") in ("q", "k", "v"):
        first = "qkv".index(part[-1]) * model.hidden
        return Place(f"blocks.{index}.attn.qkv.{kind}", first, model.hidden)
    return Place(f"blocks.{index}.{_BLOCK[part]}.{kind}")


def vision_is_ignored(name: str, model: VitModel) -> bool:
    """Return whether a tensor of a file follows from the settings."""
    del model
    return bool(_FREQUENCIES.search(name))


def vision_fits(model: VitModel) -> bool:
    """Return whether our ViT is the vision part of a Qwen2-VL."""
    has = model.positions == "rope2d" and model.final_norm and model.projector == "merger"
    lacks = not (model.patch_bias or model.class_token or model.pre_norm)
    exact = model.norm_eps == NORM_EPS and model.projector_activation == "gelu"
    return has and lacks and exact and model.mlp_width % model.hidden == 0


def vision_config(model: VitModel) -> Config:
    """Return the vision part of a configuration, without `hidden_size`: the width of language."""
    ours = {name: theirs for theirs, name in ACTIVATIONS.items()}
    return {
        "model_type": VISION,
        "depth": model.layers,
        "embed_dim": model.hidden,
        "num_heads": model.heads,
        "patch_size": model.patch,
        "in_channels": model.channels,
        "mlp_ratio": model.mlp_width // model.hidden,
        "spatial_merge_size": model.shuffle,
        "temporal_patch_size": model.temporal_patch,
        "hidden_act": ours[model.activation],
        "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
    }


def _activation(config: Config) -> str:
    return str(config.get("hidden_act", "quick_gelu"))


_TEXT_FAMILY = Family(
    model_type=TEXT,
    kind="decoder",
    not_computed=text_not_computed,
    keys=text_keys,
    place=decoder.place,
    is_ignored=decoder.is_ignored,
    fits=text_fits,
    config=text_config,
    architecture="Qwen2VLTextModel",
)
_VISION_FAMILY = Family(
    model_type=VISION,
    kind="vit",
    not_computed=vision_not_computed,
    keys=vision_keys,
    place=vision_place,
    is_ignored=vision_is_ignored,
    fits=vision_fits,
    config=vision_config,
    architecture="Qwen2VisionTransformerPretrainedModel",
)
FAMILIES: tuple[Family[Any], ...] = (_TEXT_FAMILY, _VISION_FAMILY)


def part(config: Config, kind: str) -> Part[Any]:
    """Return the vision part with its merger, or the decoder. Raises: NoSuchPart."""
    if kind == "vit":
        inner = section(config, "vision_config")
        beside = ("model.language_model.", *(f"model.{x}." for x in _LANGUAGE), "lm_head.")
        return Part(family=_VISION_FAMILY, config=inner, prefixes=_VISION_NAMES, elsewhere=beside)
    if kind != "decoder":
        raise NoSuchPart(f"model_type: {MODEL_TYPE}")
    # Before 4.52 the settings of the text part were beside `vision_config`.
    inner = section(config, "text_config") or config
    tied = bool(config.get("tie_word_embeddings")) or bool(inner.get("tie_word_embeddings"))
    return Part(
        family=_TEXT_FAMILY,
        config={**inner, "tie_word_embeddings": tied},
        prefixes=_TEXT_NAMES,
        elsewhere=tuple(prefix for prefix, _ in _VISION_NAMES),
    )


def config_of(vision_part: Config, text: DecoderModel, text_part: Config, token: int) -> Config:
    """Return the configuration of a Qwen2-VL made of two of our modules, from those of its parts.

    `token` is the placeholder of the vision part.
    """
    return {
        "model_type": MODEL_TYPE,
        "vision_config": {**vision_part, "hidden_size": text.hidden},
        "text_config": text_part,
        "image_token_id": token,
        "tie_word_embeddings": text.tied,
    }
