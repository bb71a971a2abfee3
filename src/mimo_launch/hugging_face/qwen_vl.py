"""What whole models of the Qwen-VL families have in common: a tower with a merger, and a decoder.

Decides: the parts of their folders, the decoder with M-RoPE, and the tensors of the tower that all
of them have.
Relies on: `decoder` for all that the text part shares with a Qwen2.
Leaves: the rest of a tower to one file per family.

Source: `transformers` 5.23. The first prefixes are those of its files; versions from 4.52 to 5 have
the others.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.family import Family, NoSuchPart, Part, Place, differs
from mimo_launch.hugging_face.folder import Config, ConfigError, section, short
from mimo_launch.spec.spec import DecoderModel, VitModel

SECTIONS = (16, 24, 24)
NORM_EPS = 1e-6
THETA = 10000.0
_TEXT_DEFAULTS = {
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80,
}  # fmt: skip
_VISION_NAMES = (("visual.", ""), ("model.visual.", ""))
_TEXT_NAMES = (
    ("model.", "model."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
)
_LANGUAGE = ("embed_tokens", "layers", "norm")
_BESIDE_VISION = ("model.language_model.", *(f"model.{x}." for x in _LANGUAGE), "lm_head.")
_FREQUENCIES = re.compile(r"rotary_pos_emb\.inv_freq$")


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVl:
    """A family of whole models: its two parts, and the class that loads both."""

    model_type: str
    architecture: str
    vision: Family[VitModel]
    text: Family[DecoderModel]

    @property
    def families(self) -> tuple[Family[Any], ...]:
        """The families of both parts."""
        return self.text, self.vision

    def part(self, config: Config, kind: str) -> Part[Any]:
        """Return the vision part with its merger, or the decoder. Raises: NoSuchPart."""
        # Before 4.52 the settings of the text part were beside `vision_config`.
        text, vision = section(config, "text_config") or config, section(config, "vision_config")
        if kind == "vit":
            rows, width = (self.vision.row_width or "", text.get("hidden_size"))
            refused = (f"{rows}: {short(vision[rows])}",) if differs(vision, rows, width) else ()
            return Part(
                family=self.vision,
                config=vision,
                prefixes=_VISION_NAMES,
                elsewhere=_BESIDE_VISION,
                refused=refused,
            )
        if kind != "decoder":
            raise NoSuchPart(f"model_type: {self.model_type}")
        tied = bool(config.get("tie_word_embeddings")) or bool(text.get("tie_word_embeddings"))
        return Part(
            family=self.text,
            config={**text, "tie_word_embeddings": tied},
            prefixes=_TEXT_NAMES,
            elsewhere=tuple(prefix for prefix, _ in _VISION_NAMES),
        )

    def config_of(self, vision: VitModel, text: DecoderModel, token: int) -> Config:
        """Return the configuration of a whole model made of two of our modules.

        `token` is the placeholder of the vision part.
        """
        tower = self.vision.config(vision)
        if self.vision.row_width is not None:
            tower[self.vision.row_width] = text.hidden
        return {
            "model_type": self.model_type,
            "vision_config": tower,
            "text_config": self.text.config(text),
            "image_token_id": token,
            "tie_word_embeddings": text.tied,
        }


def text_family(model_type: str, architecture: str) -> Family[DecoderModel]:
    """Return the family of a Qwen2 decoder whose positions have three axes."""
    return Family(
        model_type=model_type,
        kind="decoder",
        not_computed=lambda config: decoder.not_computed(_plain(config)),
        keys=text_keys,
        place=decoder.place,
        is_ignored=decoder.is_ignored,
        config=partial(_text_config, model_type),
        architecture=architecture,
    )


def text_keys(config: Config) -> dict[str, Any]:
    """Return the text part as keys of a decoder. Raises: ConfigError."""
    keys = decoder.keys(decoder.KINDS["qwen2"], _plain(config))
    sections = decoder.rope_settings(config).get("mrope_section", SECTIONS)
    is_list = isinstance(sections, list | tuple)
    if not is_list or not all(isinstance(each, int) for each in sections):
        raise ConfigError(f"`mrope_section` is {short(sections)}, not a list of numbers")
    return {**keys, "mrope": tuple(sections)}


def _text_config(model_type: str, model: DecoderModel) -> Config:
    config = decoder.config_of(model_type, model)
    # Its attention ignores this setting: the size of a head is hidden / heads.
    del config["head_dim"]
    config["rope_parameters"]["mrope_section"] = list(model.mrope or ())
    return config


def _plain(config: Config) -> Config:
    """Return the configuration as that of a Qwen2 whose heads fill its width."""
    plain = {key: value for key, value in plain_rope(config).items() if key != "head_dim"}
    return _TEXT_DEFAULTS | plain


def plain_rope(config: Config) -> Config:
    """Return the configuration as that of a Qwen2, whose rotary types do not include M-RoPE."""
    rope = decoder.rope_settings(config)
    if rope.get("rope_type", rope.get("type")) == "mrope":
        rope = rope | {"rope_type": "default"}
    kept = {key: value for key, value in config.items() if key != "rope_scaling"}
    return kept | {"rope_parameters": rope}


def vision_not_computed(
    activations: Mapping[str, str], default: str, config: Config
) -> Iterator[str]:
    """Yield, as `key: value`, the settings of a tower that our ViT cannot compute."""
    if config.get("hidden_act", default) not in activations:
        yield f"hidden_act: {short(config['hidden_act'])}"
    if differs(config, "quantization_config", None):
        yield f"quantization_config: {short(config['quantization_config'])}"
    rope = section(config, "rope_parameters")
    for key, only in (("rope_type", "axial"), ("rope_theta", THETA)):
        if differs(rope, key, only):
            yield f"{key}: {short(rope[key])}"


def vision_place(ends: Mapping[str, str], block: Mapping[str, str]) -> Callable[..., Place]:
    """Return the places of a tower's tensors, by its names of layers at the end and in a block."""

    def place(name: str, model: VitModel) -> Place:
        layer, _, kind = name.rpartition(".")
        if name == "patch.weight":
            sides = (model.temporal_patch, model.patch, model.patch)
            return Place("patch_embed.proj.weight", shape=(model.hidden, model.channels, *sides))
        if layer in ends:
            return Place(f"{ends[layer]}.{kind}")
        if not layer.startswith("layers."):
            raise KeyError(name)
        _, index, part = layer.split(".", 2)
        if part.removeprefix("attention.") in ("q", "k", "v"):
            first = "qkv".index(part[-1]) * model.hidden
            return Place(f"blocks.{index}.attn.qkv.{kind}", first, model.hidden)
        return Place(f"blocks.{index}.{block[part]}.{kind}")

    return place


def vision_is_ignored(name: str, model: VitModel) -> bool:
    """Return whether a tensor of a file follows from the settings."""
    del model
    return bool(_FREQUENCIES.search(name))
