"""What whole models of the Qwen-VL families have in common: a tower with a merger, and a decoder.

Decides: the parts of their folders, the decoder with M-RoPE, and the tensors of the tower that all
of them have.
Relies on: `decoder` for everything that the text part shares with a Qwen2.
Leaves: the rest of a tower to one file per family.

Source: `transformers` 5.23. It writes Qwen2-VL and Qwen2.5-VL with the first prefixes, and Qwen3-VL
with the others; versions from 4.52 to 5 write all three with the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder, rotary
from mimo_launch.hugging_face.family import Family, NoSuchPart, Part
from mimo_launch.hugging_face.folder import Config, ConfigError, section, short
from mimo_launch.hugging_face.names import QKV, Names, fused, in_layers, patches, qkv_rows
from mimo_launch.hugging_face.refusals import Refusal, Refusals, one_of, only, refusals
from mimo_launch.hugging_face.settings import PLAIN, PLAIN_PROJECTOR
from mimo_launch.spec.spec import DecoderModel, LanguageModel, VitModel

NORM_EPS = 1e-6
THETA = 10000.0
# Keys that all towers share, unless they set others.
TOWER: dict[str, Any] = {
    "windows": None,
    "interpolation": "bicubic",
    "deepstack": (),
    "class_token": False,
    "patch_bias": False,
    "norm": "rms",
    "pre_norm": False,
    "final_norm": True,
    "norm_eps": NORM_EPS,
    "activation": "swiglu",
    "projector": "merger",
    "projector_activation": "gelu",
    **PLAIN,
    **PLAIN_PROJECTOR,
}
ROPES = {"rope_type": "axial", "rope_theta": THETA}
_VISION_NAMES = (("visual.", ""), ("model.visual.", ""))
_TEXT_NAMES = (
    ("model.", "model."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
)
_LANGUAGE = ("embed_tokens", "layers", "norm")
_BESIDE_VISION = ("model.language_model.", *(f"model.{x}." for x in _LANGUAGE), "lm_head.")


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVl:
    """A family of whole models: its two parts, and the class that loads both.

    `nested`: it writes the names of both inside `model`. `beside`: prefixes of tensors of the text
    part outside `model`.
    """

    model_type: str
    architecture: str
    vision: Family[VitModel]
    text: Family[Any]
    nested: bool = False
    beside: tuple[str, ...] = ()

    @property
    def families(self) -> tuple[Family[Any], ...]:
        """The families of both parts."""
        return self.text, self.vision

    @property
    def refusals(self) -> Refusals:
        """Rows must be as wide as language."""
        key = self.vision.row_width or ""
        return refusals(Refusal(f"`{key}` other than the width of language", self._width))

    def _width(self, config: Config) -> Iterator[str]:
        text, vision = section(config, "text_config") or config, section(config, "vision_config")
        rows, width = self.vision.row_width or "", text.get("hidden_size")
        if vision.get(rows, width) != width:
            yield f"{rows}: {short(vision[rows])}"

    def part(self, config: Config, kind: str) -> Part[Any]:
        """Return the vision part with its merger, or the text part. Raises: NoSuchPart."""
        # Before 4.52 the settings of the text part were beside `vision_config`.
        text, vision = section(config, "text_config") or config, section(config, "vision_config")
        if kind == "vit":
            return Part(
                family=self.vision,
                config=vision,
                prefixes=self._ordered(_VISION_NAMES),
                elsewhere=(*_BESIDE_VISION, *self.beside),
                refused=tuple(self.refusals(config)),
            )
        if kind != self.text.kind:
            raise NoSuchPart(f"model_type: {self.model_type}")
        said = [each.get("tie_word_embeddings") for each in (config, text)]
        # Where names are not nested, the setting of the text part counts as well.
        tied = any(said) if not self.nested or said[0] is None else bool(said[0])
        return Part(
            family=self.text,
            config={**text, "tie_word_embeddings": tied},
            prefixes=(*self._ordered(_TEXT_NAMES), *((each, each) for each in self.beside)),
            elsewhere=tuple(prefix for prefix, _ in _VISION_NAMES),
        )

    def _ordered(self, names: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Return prefixes, with those written today first."""
        return names[::-1] if self.nested else names

    def config_of(self, vision: VitModel, text: LanguageModel, token: int) -> Config:
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


@dataclass(frozen=True, slots=True)
class TextKind:
    """A decoder with positions on three axes: its blocks, and the defaults of its configuration.

    `sections` are the numbers of pairs of a head per axis, consecutive or `interleaved`.
    """

    block: decoder.DecoderFamily
    defaults: Config
    sections: tuple[int, int, int]
    interleaved: bool


QWEN2 = TextKind(
    decoder.KINDS["qwen2"],
    {
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80,
    },
    (16, 24, 24),
    interleaved=False,
)  # fmt: skip
QWEN3 = TextKind(decoder.KINDS["qwen3"], {"rope_theta": 5e5}, (24, 20, 20), interleaved=True)


def text_family(model_type: str, architecture: str, kind: TextKind) -> Family[DecoderModel]:
    """Return the family of a decoder with positions on three axes."""
    return Family(
        model_type=model_type,
        kind="decoder",
        not_computed=decoder.not_computed(kind.block).after(partial(plain, kind)),
        keys=partial(text_keys, kind),
        place=decoder.place,
        is_ignored=decoder.is_ignored,
        config=partial(text_config, model_type, kind),
        architecture=architecture,
    )


def text_keys(kind: TextKind, config: Config) -> dict[str, Any]:
    """Return the configuration of a text part as keys of `model`. Raises: ConfigError."""
    keys = decoder.keys(kind.block, plain(kind, config))
    sections = sections_of(rotary.rope_settings(config), kind.sections)
    return {**keys, "mrope": sections, "mrope_interleaved": kind.interleaved}


def sections_of(rope: Config, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of pairs of a head for each axis. Raises: ConfigError."""
    sections = rope.get("mrope_section", default)
    is_list = isinstance(sections, list | tuple)
    if not is_list or not all(isinstance(each, int) for each in sections):
        raise ConfigError(f"`mrope_section` is {short(sections)}, not a list of numbers")
    return tuple(sections)


def text_config(model_type: str, kind: TextKind, model: DecoderModel) -> Config:
    """Return the configuration of our decoder as a text part."""
    config = decoder.config_of(model_type, model, kind.block.windows)
    if kind is QWEN2:
        # Its attention ignores this setting: the size of a head is hidden / heads.
        del config["head_dim"]
    config["rope_parameters"]["mrope_section"] = list(model.mrope or ())
    if kind.interleaved:
        config["rope_parameters"]["mrope_interleaved"] = True
    return config


def plain(kind: TextKind, config: Config) -> Config:
    """Return the configuration as for a text model alone, with the defaults of its kind."""
    found = plain_rope(config)
    if kind is QWEN2:  # Its heads fill the stream's width.
        found.pop("head_dim", None)
    return kind.defaults | found


def plain_rope(config: Config) -> Config:
    """Return the configuration as for a text model alone, without M-RoPE as rotary type."""
    rope = rotary.rope_settings(config)
    if rotary.type_of(rope) == "mrope":
        rope = rope | {"rope_type": "default"}
    kept = {key: value for key, value in config.items() if key != "rope_scaling"}
    return kept | {"rope_parameters": rope}


def vision_not_computed(activations: Mapping[str, str], default: str) -> Refusals:
    """Return the settings of a tower that our ViT does not compute."""
    # In `transformers` 5.24 `default` means this type for a tower as well.
    ropes = refusals(one_of("rope_type", ("axial", "default"), "axial"), only("rope_theta", THETA))
    return refusals(one_of("hidden_act", activations, default)) + ropes.after(
        lambda config: section(config, "rope_parameters")
    )


def vision_names(
    ends: Mapping[str, str], block: Mapping[str, str], deep: Mapping[str, str] | None = None
) -> Names:
    """Return the names of a tower's tensors, from its names of layers.

    `ends` are the layers around the blocks, `block` the layers inside each, `deep` the layers of
    each projector for a block before the last.
    """
    names = Names(ends) | {"patch.weight": patches("patch_embed.proj.weight", in_time=True)}
    names |= in_layers("blocks.*.", {**block, **fused("attn.qkv", QKV, qkv_rows)})
    before = "deepstack_merger_list.*."
    return names | {f"projector.deepstack.*.{x}": before + y for x, y in (deep or {}).items()}


def videos_timed(time: str, per_second: float | None = None) -> dict[str, Any]:
    """Return `video` of a tower, by how language gets the time of a video."""
    return {"time": time, "per_second": per_second}


def as_written(per_second: float) -> float:
    """Return positions per second as folders write them: as an integer, if they are whole."""
    return int(per_second) if per_second == int(per_second) else per_second


def vision_is_ignored(name: str, model: VitModel) -> bool:
    """Return whether a tensor of a file follows from the settings."""
    del model
    return name.endswith("rotary_pos_emb.inv_freq")


UNSCALED = only("rope_type", "default").after(
    lambda config: {"rope_type": rotary.type_of(plain_rope(config)["rope_parameters"], "default")}
)
