"""Cohere Compass: the tower of a Qwen3-VL, and a Command R with positions on three axes.

Source: `transformers` 5.24, models/cohere_compass.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import FULL, SLIDING, WindowKeys
from mimo_launch.hugging_face.families import cohere, qwen3_vl
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number, section, short
from mimo_launch.hugging_face.refusals import Refusal, refusals
from mimo_launch.hugging_face.settings import Computed, defaults_of
from mimo_launch.hugging_face.wholes import VisionAndText
from mimo_launch.spec.layers import Nope

_WINDOWS = WindowKeys(by_layer=True)
_ROPES, _DEFAULT = "rope_parameters", "default"


def _by_kind(config: Config) -> dict[str, Config | None]:
    """Return the rotary settings of each kind of layer; None if it has no rotary positions."""
    said, usual = section(config, _ROPES), {"rope_theta": rotary.THETA, "rope_type": _DEFAULT}
    each = said if {FULL, SLIDING} & said.keys() else dict.fromkeys((FULL, SLIDING), said)
    ropes = {kind: each.get(kind, {}) for kind in dict.fromkeys(config["layer_types"])}
    return {kind: None if rope is None else usual | rope for kind, rope in ropes.items()}


def _first(config: Config) -> Config:
    """Return the rotary settings of whole layers, or of those that have some."""
    ropes = _by_kind(config)
    return ropes.get(FULL) or ropes.get(SLIDING) or {}


def _still(config: Config) -> dict[str, Any] | None:
    ropes = _by_kind(config)
    found = tuple(i for i, each in enumerate(config["layer_types"]) if ropes[each] is None)
    return defaults_of(Nope) | {"layers": found} if found else None


def _window(config: Config) -> dict[str, Any] | None:
    window, ropes = _WINDOWS.read(config), _by_kind(config)
    thetas = [each["rope_theta"] for each in ropes.values() if each is not None]
    if window is None or len({*thetas}) < 2:
        return window
    return window | {"rope_theta": (ropes[SLIDING] or {})["rope_theta"]}


def _as_written(model: Any) -> Config:
    window, still = model.sliding_window, () if model.nope is None else model.nope.layers
    full = range(model.layers) if window is None else window.full
    found: dict[str, Config | None] = {}
    for i in range(model.layers):
        theta = model.rope_theta if i in full or not window.rope_theta else window.rope_theta
        rope = {
            "rope_type": _DEFAULT,
            "rope_theta": theta,
            "mrope_section": list(model.mrope or ()),
        }
        found[FULL if i in full else SLIDING] = None if i in still else rope
    return {_ROPES: found}


def _scaled(config: Config) -> Iterator[str]:
    for kind, rope in _by_kind(config).items():
        if rope is not None and rope["rope_type"] != _DEFAULT:
            yield f"rope_type: {short(rope['rope_type'])} of {kind}"


def _with_layers(config: Config) -> Config:
    whole = [FULL] * int(number(config, "num_hidden_layers"))
    return config | {"layer_types": config.get("layer_types") or whole}


COMPASS_TEXT = Family(
    model_type="cohere_compass_text",
    kind="decoder",
    architecture="CohereCompassForCausalLM",
    settings=decoders.decoder(
        decoders.sizes(),
        rope_theta=Computed(
            lambda config: number(_first(config), "rope_theta", rotary.THETA),
            words=f"`{_ROPES}` of each kind of layer; 10000",
        ),
        rope_scaling=None,
        sliding_window=Computed(_window, partial(_WINDOWS.write, ""), _WINDOWS.words),
        nope=Computed(_still, words=f"layers of a kind whose `{_ROPES}` are null"),
        mrope=Computed(
            lambda config: rotary.sections_of({_ROPES: _first(config)}, (24, 20, 20)),
            _as_written,
            f"`mrope_section` of `{_ROPES}`; [24, 20, 20]",
        ),
        mrope_interleaved=True,
        **cohere.PARTS,
    ),
    tensors=cohere.TENSORS,
    refused=cohere.BIASES
    + decoders.not_computed(_WINDOWS, but=(cohere.BIAS,)).without("rope_type")
    + refusals(Refusal("`rope_type` other than `default`", _scaled)),
    defaults=cohere.SIZES,
    prepared=_with_layers,
    rank=2,
)
COMPASS = VisionAndText(
    model_type="cohere_compass",
    architecture="CohereCompassForConditionalGeneration",
    published=("CohereLabs/North-Micro-Vision-Instruct",),
    vision=replace(
        qwen3_vl.vision_family("cohere_compass_vision", "CohereCompassVisionModel", (8, 16, 24)),
        rank=2,
    ),
    text=COMPASS_TEXT,
    nested=True,
    rank=1,
    notes="A Qwen3-VL with a Command R; layers without `rope_parameters` have no positions.",
)
