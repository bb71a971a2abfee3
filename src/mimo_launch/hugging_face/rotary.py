"""Rotary positions in configurations: on one axis or three, scaled, and of a part of each head.

Decides: where their settings are, which scalings are computed, and what they mean.
Relies on: `config.json` as transformers 4 and 5 write it.
Leaves: other forms to the families that have them.
"""

from collections.abc import Callable, Iterator
from typing import Any

from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.refusals import Refusal, listed, only, where
from mimo_launch.hugging_face.settings import Computed, defaults_of
from mimo_launch.spec.language_models import DecoderBlocks
from mimo_launch.spec.layers import RopeScaling

THETA = 10000.0
# The scalings of rotary positions that our decoder has.
LLAMA3, LINEAR, YARN = SCALINGS = ("llama3", "linear", "yarn")
# It has a list of factors up to an original length, which alone is computed, and one beyond.
LONGROPE = "longrope"
# This type equals the default one up to `max_position_embeddings`.
DYNAMIC, LONGEST = "dynamic", "max_position_embeddings"
# The part of a head that rotates.
FACTOR = "partial_rotary_factor"
PROPORTIONAL = "proportional"
LENGTH = "original_max_position_embeddings"
_SHORT, _LONG = "short_factor", "long_factor"
# The keys of rotary settings, in transformers 5 and before.
_ROPES = ("rope_parameters", "rope_scaling")


def rope_settings(config: Config) -> dict[str, Any]:
    """Return the settings of rotary embeddings: `rope_parameters` since transformers 5."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope if isinstance(rope, dict) else {"rope_type": short(rope)}


def type_of(rope: Config, default: str | None = None) -> Any:
    """Return the type of rotary embeddings, under either of its names."""
    return rope.get("rope_type", rope.get("type", default))


def rope_refusal(*, in_part: bool = False) -> Refusal:
    """Return the rule for rotary embeddings; heads may rotate `in_part`."""

    def found(config: Config) -> Iterator[str]:
        odd = {x: y for x in _ROPES if (y := config.get(x)) and not isinstance(y, dict)}
        if odd:
            yield from (f"{key}: {short(value)}" for key, value in odd.items())
            return
        rope = rope_settings(config)
        scaling = type_of(rope, "default")
        if scaling == DYNAMIC and longest_of(config) is None:
            yield f"rope_type: {DYNAMIC} without {LONGEST}"
        elif scaling == LONGROPE and not all(_factors_of(rope)):
            yield f"rope_type: {LONGROPE} without positive factors"
        elif scaling not in ("default", DYNAMIC, LONGROPE, *SCALINGS):
            yield f"rope_type: {scaling}"
        if not in_part:
            yield from only(FACTOR, 1.0).found(rope)

    words = f"`rope_type` other than {listed(('default', DYNAMIC, LONGROPE, *SCALINGS))}"
    return Refusal(words, found, "rope_type")


def _differ(config: Config) -> bool:
    rope, scaling = (config.get(key) for key in _ROPES)
    if not (rope and isinstance(rope, dict) and isinstance(scaling, dict)):
        return False
    said = {"rope_type" if key == "type" else key: each for key, each in scaling.items()}
    return any(rope.get(key) != each for key, each in said.items())


# `transformers` takes the latter alone, without the base of the former: hardly what is meant.
TWO_ROPES = where("rope_scaling", "other than `rope_parameters`", _differ, beside="rope_parameters")


def longest_of(config: Config) -> int | None:
    """Return up to how many tokens the dynamic type equals the default one; None: any other."""
    said, is_dynamic = config.get(LONGEST), type_of(rope_settings(config)) == DYNAMIC
    return said if is_dynamic and type(said) is int else None


def original_of(config: Config) -> float:
    """Return the length before a scaling. Raises: ConfigError.

    As in `transformers`: that beside rotary settings, or in them, or the longest.
    """
    return number({**rope_settings(config), **config}, LENGTH, config.get(LONGEST))


def _factors_of(rope: Config) -> tuple[float, ...]:
    """Return the factor of each pair up to the original length; 0 for what is no number."""
    said = rope.get(_SHORT)
    return tuple(
        float(x) if isinstance(x, int | float) and x > 0 else 0.0
        for x in (said if isinstance(said, list | tuple) else [0])
    )


def dynamic_as_in(base: Config, config: Config) -> Config:
    """Return the rotary settings to write in place of ours, if those of `base` change with length.

    Both are equal in training, as its sequences are short enough.
    """
    ours, theirs = rope_settings(config), rope_settings(base)
    if type_of(ours) == type_of(theirs) == LONGROPE:
        return {"rope_parameters": {**ours, _LONG: theirs.get(_LONG, ours[_LONG])}}
    # With a Hunyuan's `alpha` our base differs, and every length has the same frequencies.
    if type_of(ours) != "default" or type_of(theirs) != DYNAMIC or theirs.get("alpha"):
        return {}
    return {"rope_parameters": {**theirs, **ours, "rope_type": DYNAMIC}}


def theta_of(config: Config) -> float:
    """Return the base of rotary embeddings. Raises: ConfigError."""
    return number({**config, **rope_settings(config)}, "rope_theta", THETA)


def scaling_of(config: Config) -> dict[str, Any] | None:
    """Return the scaling of rotary embeddings as `rope_scaling`. Raises: ConfigError."""
    rope = rope_settings(config)
    kind = type_of(rope)
    if kind == LONGROPE:
        return _longrope(rope, config)
    if kind not in SCALINGS:
        return None
    fields = {key: field.default for key, field in RopeScaling.model_fields.items()}
    found = {**fields, "rope_type": kind, "factor": number(rope, "factor")}
    if kind == YARN:
        rope = {key: each for key, each in rope.items() if each is not None}
    if LENGTH in RopeScaling.USED[kind]:
        rope = {**rope, LENGTH: original_of(config)}
    for key in RopeScaling.USED[kind]:
        if key == "truncate":
            found[key] = bool(rope.get(key, True))
        elif kind != YARN or key in rope:
            found[key] = number(rope, key)
    return found


def _longrope(rope: Config, config: Config) -> dict[str, Any]:
    """Return the scaling of a Phi-3 up to its original length. Raises: ConfigError."""
    length = original_of(config)
    # As in `transformers`: without a factor both lengths decide, and one below 1 changes nothing.
    has_factor = rope.get("factor") is not None
    factor = number(rope, "factor") if has_factor else number(config, LONGEST) / length
    found = defaults_of(RopeScaling) | {
        "rope_type": LONGROPE,
        "factor": max(1.0, factor),
        _SHORT: _factors_of(rope),
        LENGTH: length,
    }
    said = rope.get("attention_factor")
    return found if said is None else found | {"attention_factor": number(rope, "attention_factor")}


def proportional(rope: Config) -> dict[str, Any] | None:
    """Return the scaling of rotary settings of the proportional type, None for other types."""
    if type_of(rope) != PROPORTIONAL:
        return None
    return defaults_of(RopeScaling) | {
        "rope_type": PROPORTIONAL,
        "factor": number(rope, "factor", 1.0),
        FACTOR: number(rope, FACTOR, 1.0),
    }


def rope_of(model: DecoderBlocks) -> Config:
    """Return the settings of rotary embeddings of layers without windows."""
    scaling: Config = {"rope_type": "default"}
    if (ours := model.rope_scaling) is not None:
        used = RopeScaling.USED[ours.rope_type] | {"rope_type", "factor"}
        scaling = ours.model_dump(include=set(used), exclude_none=True)
        if ours.rope_type == LONGROPE:
            factors = list(ours.short_factor)
            # Nothing here computes those beyond the original length.
            scaling |= {_SHORT: factors, _LONG: factors}
    return {**scaling, "rope_theta": model.rope_theta}


def rope(also: Callable[[Any], Config] = lambda _: {}) -> dict[str, Computed]:
    """Return the entries of rotary embeddings; `also` are more settings of `rope_parameters`."""
    return {
        "rope_theta": Computed(
            theta_of,
            lambda model: _written({**rope_of(model), **also(model)}),
            "`rope_parameters.rope_theta`, or `rope_theta`; 10000",
        ),
        "rope_scaling": Computed(scaling_of, words="the scaling of `rope_parameters`"),
    }


def _written(rope: Config) -> Config:
    """Return rotary settings; `transformers` takes an original length beside them first."""
    found: Config = {"rope_parameters": rope}
    return found | ({LENGTH: rope[LENGTH]} if rope["rope_type"] == LONGROPE else {})


def factor_of(config: Config, default: float) -> float:
    """Return the part of a head that rotates; versions before 5 wrote it beside the base."""
    return number({FACTOR: config.get(FACTOR, default), **rope_settings(config)}, FACTOR)


def rotary_factor(default: float) -> Computed:
    """Return the entry of the part of a head that rotates; `rope` writes it."""
    words = f"`rope_parameters.{FACTOR}`, or `{FACTOR}`; {default:g}"
    return Computed(lambda config: factor_of(config, default), words=words)


def factor_as_written(model: Any) -> Config:
    """Return the part of a head that rotates as a setting of `rope_parameters`."""
    return {FACTOR: model.rotary_factor}


def sections_of(config: Config, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of pairs of a head for each axis. Raises: ConfigError."""
    sections = rope_settings(config).get("mrope_section", default)
    is_list = isinstance(sections, list | tuple)
    if not is_list or not all(isinstance(each, int) for each in sections):
        raise ConfigError(f"`mrope_section` is {short(sections)}, not a list of numbers")
    return tuple(sections)


def mrope(
    sections: tuple[int, ...], *, interleaved: bool, also: Callable[[Any], Config] = lambda _: {}
) -> dict[str, Any]:
    """Return the entries of positions on three axes; `also` is as in `rope`.

    `sections` are the numbers of pairs of a head per axis, consecutive or `interleaved`.
    """

    def written(model: Any) -> Config:
        turns = {"mrope_interleaved": True} if interleaved else {}
        return {"mrope_section": list(model.mrope or ()), **turns, **also(model)}

    words = f"`rope_parameters.mrope_section`; {list(sections)}"
    return {
        **rope(written),
        "mrope": Computed(lambda config: sections_of(config, sections), words=words),
        "mrope_interleaved": interleaved,
    }


def plain_rope(config: Config) -> Config:
    """Return the configuration as for a text model alone, without M-RoPE as rotary type."""
    rope = rope_settings(config)
    if type_of(rope) == "mrope":
        rope = rope | {"rope_type": "default"}
    kept = {key: value for key, value in config.items() if key != "rope_scaling"}
    return kept | {"rope_parameters": rope}
