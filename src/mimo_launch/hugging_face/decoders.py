"""What language models share: sizes, rotary positions, windows and experts in configurations.

Decides: the tables of settings and of tensors of a Llama, and what of it families vary; which
settings no decoder of ours computes.
Relies on: `config.json` as transformers 4 and 5 write it, with the defaults of its config classes.
Leaves: what else a family has, and its own defaults, to `families`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.refusals import Refusal, Refusals, listed, only, refusals, where
from mimo_launch.hugging_face.settings import (
    Computed,
    Fixed,
    Section,
    Settings,
    architecture,
    defaults_of,
)
from mimo_launch.hugging_face.tensors import (
    EMBEDDING,
    HEAD,
    MLP,
    Beyond,
    Dropped,
    Place,
    Tensors,
    in_layers,
)
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.language_models import DecoderBlocks
from mimo_launch.spec.layers import RopeScaling
from mimo_launch.spec.spec import DecoderModel, HybridModel

NORM_EPS, THETA = 1e-6, 10000.0
# The scalings of rotary positions that our decoder has.
LLAMA3, LINEAR, YARN = SCALINGS = ("llama3", "linear", "yarn")
# The part of a head that rotates.
FACTOR = "partial_rotary_factor"
_LENGTH = "original_max_position_embeddings"
# The keys of rotary settings, in transformers 5 and before.
_ROPES = ("rope_parameters", "rope_scaling")
LAYERS = "model.layers.*."
_WIDTH, _HEADS = "hidden_size", "num_attention_heads"


# Rotary positions.


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
        if scaling not in ("default", *SCALINGS):
            yield f"rope_type: {scaling}"
        if not in_part:
            yield from only(FACTOR, 1.0).found(rope)

    return Refusal(f"`rope_type` other than {listed(('default', *SCALINGS))}", found)


def theta_of(config: Config) -> float:
    """Return the base of rotary embeddings. Raises: ConfigError."""
    return number({**config, **rope_settings(config)}, "rope_theta", THETA)


def scaling_of(config: Config) -> dict[str, Any] | None:
    """Return the scaling of rotary embeddings as `rope_scaling`. Raises: ConfigError."""
    rope = rope_settings(config)
    kind = type_of(rope)
    if kind not in SCALINGS:
        return None
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
    return found


def rope_of(model: DecoderBlocks) -> Config:
    """Return the settings of rotary embeddings of layers without windows."""
    scaling: Config = {"rope_type": "default"}
    if (ours := model.rope_scaling) is not None:
        used = RopeScaling.USED[ours.rope_type] | {"rope_type", "factor"}
        scaling = ours.model_dump(include=set(used), exclude_none=True)
    return {**scaling, "rope_theta": model.rope_theta}


def rope(also: Callable[[Any], Config] = lambda _: {}) -> dict[str, Computed]:
    """Return the entries of rotary embeddings; `also` are more settings of `rope_parameters`."""
    return {
        "rope_theta": Computed(
            theta_of,
            lambda model: {"rope_parameters": {**rope_of(model), **also(model)}},
            "`rope_parameters.rope_theta`, or `rope_theta`; 10000",
        ),
        "rope_scaling": Computed(scaling_of, words="the scaling of `rope_parameters`"),
    }


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


# Layers that attend in windows.

FULL, SLIDING = "full_attention", "sliding_attention"
# Qwen2 and Qwen3: layers before this one have no window.
_FIRST = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """How a configuration selects layers that attend in windows: the entry `sliding_window`.

    `size` is the default. `asked`: only with `use_sliding_window`. `by_layer`: only layers that
    `layer_types` names, or layers from `max_window_layers` on; otherwise all. `never`: no layer
    does, whatever the configuration says.
    """

    size: int | None = 4096
    asked: bool = False
    by_layer: bool = False
    never: bool = False

    @property
    def words(self) -> str:
        """Where windows come from, for the page of families."""
        asked = " with `use_sliding_window`" if self.asked else ""
        where = ", in layers by `layer_types` or `max_window_layers`" if self.by_layer else ""
        return "" if self.never else f"`sliding_window`{asked}{where}; {self.size or 'none'}"

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The values of `layer_types` that our decoder computes."""
        return (FULL, SLIDING) if self.by_layer else (FULL,)

    def refusal(self) -> Refusal:
        """Return the rule for kinds of layers that our decoder does not compute."""

        def found(config: Config) -> Iterator[str]:
            layers = config.get("layer_types") or []
            layers = layers if isinstance(layers, list) else [layers]
            # A layer with a window of unknown size cannot be computed.
            known = self.layer_types if self._size_of(config) is not None else (FULL,)
            if others := [x for x in layers if x not in known]:
                yield f"layer_types: {short(others[0])}"

        return Refusal(f"`layer_types` other than {listed(self.layer_types)}", found)

    def _size_of(self, config: Config) -> int | float | None:
        """Return how many tokens layers with windows attend to, None if no layer has one."""
        if self.never or (self.asked and not config.get("use_sliding_window")):
            return None
        if config.get("sliding_window", self.size) is None:
            return None
        return number(config, "sliding_window", self.size)

    def read(self, config: Config) -> dict[str, Any] | None:
        """Return a configuration as `sliding_window`. Raises: ConfigError."""
        size, layers = self._size_of(config), int(number(config, "num_hidden_layers"))
        if size is None:
            return None
        full = []
        if self.by_layer:
            first = number(config, "max_window_layers", _FIRST)
            types = config.get("layer_types")
            slides = (
                [each != FULL for each in types] if types else [i >= first for i in range(layers)]
            )
            full = [i for i, each in enumerate(slides) if not each]
        if len(full) >= layers:
            return None
        return {"size": size, "full": tuple(full), "rope_theta": None}

    def write(self, _ours: str, model: Any) -> Config:
        """Return the settings of windows, as transformers 5 writes them."""
        if self.never:
            return {}
        ours = model.sliding_window
        # Where only `layer_types` decides, there is a size even if no layer uses it.
        unused = self.size if self.by_layer and not self.asked else None
        found: Config = {"sliding_window": unused if ours is None else ours.size}
        if self.asked:
            found["use_sliding_window"] = ours is not None
        if self.by_layer:
            full = range(model.layers) if ours is None else ours.full
            found["layer_types"] = [FULL if i in full else SLIDING for i in range(model.layers)]
        return found


NO_WINDOWS = Windows(never=True)


def in_turn(config: Config, every: int) -> Config:
    """Return a configuration with `layer_types`; by default one layer in `every` has no window."""
    if config.get("layer_types"):
        return config
    layers = range(1, int(number(config, "num_hidden_layers")) + 1)
    return config | {"layer_types": [SLIDING if i % every else FULL for i in layers]}


# Blocks.


def sizes(*, kv_heads: int | None = None, head_size: int | None = None) -> dict[str, Any]:
    """Return the entries of a decoder's sizes; a default of None follows from other settings."""
    return {
        "layers": "num_hidden_layers",
        "hidden": _WIDTH,
        "heads": _HEADS,
        "kv_heads": ("num_key_value_heads", kv_heads, lambda x: number(x, _HEADS)),
        "head_dim": (
            "head_dim", head_size, lambda x: number(x, _WIDTH) // max(1, int(number(x, _HEADS))),
        ),
        "mlp": "intermediate_size",
        "vocab": "vocab_size",
    }  # fmt: skip


# Heads that fill the width of the stream.
FILLED = Computed(
    lambda x: number(x, _WIDTH) // max(1, int(number(x, _HEADS))),
    words=f"`{_WIDTH}` / `{_HEADS}`",
)


def decoder(block: Mapping[str, Any], windows: Windows = NO_WINDOWS, /, **parts: Any) -> Settings:
    """Return the settings of a decoder like Llama; `parts` are entries, or keys that are fixed.

    Keys of ours that nothing names are off in every configuration.
    """
    entries = {
        key: each if hasattr(each, "read") or isinstance(each, tuple) else Fixed(each)
        for key, each in parts.items()
    }
    table = {
        **block,
        "tied": ("tie_word_embeddings", False),
        **{key: entries.pop(key, Fixed(False)) for key in ("qkv_bias", "output_bias", "qk_norm")},
        "norm_eps": ("rms_norm_eps", NORM_EPS),
        **rope(),
        "sliding_window": windows,
        "bidirectional_images": Fixed(False),
        **entries,
    }
    return Settings(table, rest=_REST)


# Keys of a model that no folder decides; the files show whether they hold `mtp`.
_FREE = frozenset({"kind", "vocab_multiple", "mtp", "mlp"})
_REST = defaults_of(DecoderModel, but=_FREE)
HYBRID_REST = defaults_of(HybridModel, but=_FREE)


def not_computed(
    windows: Windows = NO_WINDOWS, *, output_bias: bool = False, but: tuple[str, ...] = ()
) -> Refusals:
    """Return the settings that no decoder of ours computes, without those in `but`."""
    rules = refusals(
        only("hidden_act", "silu"),
        only("attention_bias", output_bias),
        only("mlp_bias", False),
        only(FACTOR, 1.0),
    )
    return rules.without(*but) + refusals(windows.refusal(), rope_refusal(in_part=FACTOR in but))


ENDS = {"embedding.weight": EMBEDDING, "head.weight": HEAD, "norm.weight": "model.norm.weight"}
# `lm_head.weight` of a tied model.
TIED = Dropped(HEAD, lambda model: model.tied)
ATTENTION = {
    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkvo"},
    **{f"attention.{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
}
TENSORS = Tensors(
    ENDS
    | in_layers(
        LAYERS,
        {
            "attention_norm": "input_layernorm",
            "mlp_norm": "post_attention_layernorm",
            **ATTENTION,
            **{f"mlp.{x}": f"mlp.{x}_proj" for x in MLP},
        },
    ),
    # Old versions of transformers saved the frequencies of rotary embeddings.
    (Dropped("*rotary_emb.inv_freq"), TIED),
)


# Experts.

# The default weight of the auxiliary loss in transformers.
BALANCE = {"aux_loss": ("router_aux_loss_coef", 0.001)}
# The rule that the layers without experts come first.
_DENSE = "mlp_only_layers"
FIRST_DENSE = where(
    _DENSE,
    "other than the first ones",
    lambda config: (dense := config.get(_DENSE) or []) != list(range(len(dense))),
)
# Layers without experts, and layers between two with experts.
DENSE_LAYERS = {
    "first_dense": Computed(
        lambda config: len(config.get(_DENSE) or []),
        lambda moe: {_DENSE: list(range(moe.first_dense))},
        f"the number of `{_DENSE}`, which must be the first layers; 0",
    )
}


def count(default: int | None = None) -> Computed:
    """Return the entry of the number of experts."""

    def found(config: Config) -> float:
        # transformers 5 writes the former and reads both.
        key = "num_local_experts" if "num_local_experts" in config else "num_experts"
        return number(config, key, default)

    words = f"`num_local_experts`, or `num_experts`; {default or 'error'}"
    return Computed(found, lambda moe: {"num_local_experts": moe.experts}, words)


def experts(
    table: Mapping[str, Any], is_there: Callable[[Config], bool] = lambda _: True, **fixed: Any
) -> Section:
    """Return the section `moe` of a family; `fixed` are keys that are the same in all models."""
    return Section(Settings(table, rest=architecture(fixed)), is_there)


_SHARED, _OF_EXPERT = "n_shared_experts", "moe_intermediate_size"
# Experts chosen as in DeepSeek-V3.
GROUPED = experts(
    {
        "experts": "n_routed_experts",
        "top_k": "num_experts_per_tok",
        "width": _OF_EXPERT,
        "normalize": ("norm_topk_prob", True),
        "scale": "routed_scaling_factor",
        "groups": "n_group",
        "top_groups": "topk_group",
        "first_dense": "first_k_dense_replace",
        "shared": Computed(
            lambda config: number(config, _SHARED) * number(config, _OF_EXPERT),
            lambda moe: {_SHARED: moe.shared // moe.width},
            f"`{_SHARED}` x `{_OF_EXPERT}`",
        ),
    },
    score="sigmoid",
    bias_update_rate=0.0,
)
# The correction bias is not multiplied by activations.
CORRECTION = Place("mlp.gate.e_score_correction_bias", at_least_fp32=True)
GROUPED_TENSORS = Tensors(
    (
        TENSORS
        | in_layers(
            LAYERS,
            {
                "mlp.router.weight": "mlp.gate.weight",
                "mlp.router.expert_bias": CORRECTION,
                **{f"mlp.shared.{x}.weight": f"mlp.shared_experts.{x}_proj.weight" for x in MLP},
                **{f"mlp.experts.*.{x}.weight": f"mlp.experts.*.{x}_proj.weight" for x in MLP},
            },
        )
    ).table,
    # Layers of a depth of multi-token prediction that we leave out.
    (Beyond("model.layers.", lambda x: x.layers + kind_of(x).depths), *TENSORS.dropped),
)
