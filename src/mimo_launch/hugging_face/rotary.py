"""Rotary positions of decoders in configurations.

Decides: where their settings are, which scalings are computed, and what they mean.
Relies on: `config.json` as transformers 4 and 5 write it.
Leaves: heads that rotate in part, and positions on three axes, to the families that have them.
"""

from collections.abc import Iterator
from typing import Any

from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.hugging_face.refusals import Refusal, listed, only
from mimo_launch.spec.language_models import DecoderBlocks
from mimo_launch.spec.layers import RopeScaling

THETA = 10000.0
# The scalings that our decoder has.
LLAMA3, LINEAR, YARN = SCALINGS = ("llama3", "linear", "yarn")
# The keys of the settings, in transformers 5 and before.
_SECTIONS = ("rope_parameters", "rope_scaling")
_LENGTH = "original_max_position_embeddings"


def rope_settings(config: Config) -> dict[str, Any]:
    """Return the settings of rotary embeddings: `rope_parameters` since transformers 5."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope if isinstance(rope, dict) else {"rope_type": short(rope)}


def type_of(rope: Config, default: str | None = None) -> Any:
    """Return the type of rotary embeddings, under either of its names."""
    return rope.get("rope_type", rope.get("type", default))


def _not_computed(config: Config) -> Iterator[str]:
    odd = {x: y for x in _SECTIONS if (y := config.get(x)) and not isinstance(y, dict)}
    if odd:
        yield from (f"{key}: {short(value)}" for key, value in odd.items())
        return
    rope = rope_settings(config)
    scaling = type_of(rope, "default")
    if scaling not in ("default", *SCALINGS):
        yield f"rope_type: {scaling}"
    yield from only("partial_rotary_factor", 1.0).found(rope)


# Which rotary embeddings our decoder does not compute.
REFUSAL = Refusal(f"`rope_type` other than {listed(('default', *SCALINGS))}", _not_computed)


def rope_keys(config: Config) -> dict[str, Any]:
    """Return a configuration as `rope_theta` and `rope_scaling`. Raises: ConfigError."""
    rope = rope_settings(config)
    theta, kind = number({**config, **rope}, "rope_theta", THETA), type_of(rope)
    if kind not in SCALINGS:
        return {"rope_theta": theta, "rope_scaling": None}
    fields = {key: field.default for key, field in RopeScaling.model_fields.items()}
    found = {**fields, "rope_type": kind, "factor": number(rope, "factor")}
    if kind == YARN:
        rope = {key: each for key, each in rope.items() if each is not None}
        if _LENGTH not in rope:
            rope[_LENGTH] = number(config, "max_position_embeddings")
    for key in RopeScaling.USED[kind]:
        if key == "truncate":
            found[key] = bool(rope.get(key, True))
        elif kind != YARN or key in rope:
            found[key] = number(rope, key)
    return {"rope_theta": theta, "rope_scaling": found}


def rope_of(model: DecoderBlocks) -> Config:
    """Return the settings of rotary embeddings of layers without windows."""
    scaling: Config = {"rope_type": "default"}
    if (ours := model.rope_scaling) is not None:
        used = RopeScaling.USED[ours.rope_type] | {"rope_type", "factor"}
        scaling = ours.model_dump(include=set(used), exclude_none=True)
    return {**scaling, "rope_theta": model.rope_theta}
