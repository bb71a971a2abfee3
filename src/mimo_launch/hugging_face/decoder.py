"""Decoders of Llama, Qwen2, Qwen3 and Mistral shape.

Decides: what their configurations mean, which settings our decoder cannot compute, and the names of
its tensors.
Relies on: `config.json` as transformers 4 and 5 write it; defaults are those of its config classes.
Leaves: comparing with a spec to `checks.init_from`, reading tensors to `checkpoint`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from mimo_launch.hugging_face.family import Family, Place
from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.hugging_face.refusals import (
    Refusal,
    Refusals,
    listed,
    only,
    refusals,
)
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.language_models import DecoderBlocks
from mimo_launch.spec.spec import DecoderModel, RopeScaling, TalkerModel


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowKeys:
    """How configurations say that layers attend in windows.

    `size` is that of one that does not say. `asked`: only with `use_sliding_window`. `by_layer`:
    only the layers of `layer_types`, or those from `max_window_layers` on; otherwise all.
    """

    size: int | None = 4096
    asked: bool = False
    by_layer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """The optional parts of a block, and the defaults of its configuration.

    The default None follows from other keys. `windows`: None if all layers attend to all tokens.
    """

    qkv_bias: bool
    qk_norm: bool
    kv_heads: int | None
    head_size: int | None
    windows: WindowKeys | None = None
    output_bias: bool = False

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The values of `layer_types` that our decoder computes."""
        return (FULL, SLIDING) if self.windows is not None and self.windows.by_layer else (FULL,)


FULL, SLIDING = "full_attention", "sliding_attention"
_OF_QWEN = WindowKeys(asked=True, by_layer=True)
KINDS = {
    "llama": DecoderFamily(qkv_bias=False, qk_norm=False, kv_heads=None, head_size=None),
    "qwen2": DecoderFamily(
        qkv_bias=True, qk_norm=False, kv_heads=32, head_size=None, windows=_OF_QWEN
    ),
    "qwen3": DecoderFamily(
        qkv_bias=False, qk_norm=True, kv_heads=32, head_size=128, windows=_OF_QWEN
    ),
    "mistral": DecoderFamily(
        qkv_bias=False, qk_norm=False, kv_heads=8, head_size=None, windows=WindowKeys()
    ),
}
NORM_EPS, ROPE_THETA = 1e-6, 10000.0
# Layers before this one have no window.
MAX_WINDOW_LAYERS = 28
# The keys of the settings of rotary embeddings, in transformers 5 and before.
_ROPES = ("rope_parameters", "rope_scaling")
# The scalings of rotary embeddings that our decoder has.
LLAMA3, LINEAR, YARN = SCALINGS = ("llama3", "linear", "yarn")

_LENGTH = "original_max_position_embeddings"
# The keys of `model` that no configuration has; of `mtp` the files say whether they have it.
_NOT_OF_FOLDERS = {"kind", "vocab_multiple", "mtp"}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
MLP = ("gate", "up", "down")
ENDS = {"embedding.weight": EMBEDDING, "head.weight": HEAD, "norm.weight": "model.norm.weight"}
_LAYERS = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkvo"},
    **{f"attention.{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
    **{f"mlp.{x}": f"mlp.{x}_proj" for x in MLP},
}
# Old versions of transformers saved the frequencies of rotary embeddings, which follow from theta.
_FREQUENCIES = re.compile(r"rotary_emb\.inv_freq$")


def not_computed(kind: DecoderFamily) -> Refusals:
    """Return what our decoder does not compute of the configurations of a kind."""
    return refusals(
        *(
            only("hidden_act", "silu"),
            only("attention_bias", kind.output_bias),
            only("mlp_bias", False),
        ),
        only("partial_rotary_factor", 1.0),
        *of_layers_and_positions(kind),
    )


def of_layers_and_positions(kind: DecoderFamily) -> tuple[Refusal, ...]:
    """Return which kinds of layers and of rotary embeddings our decoder does not compute."""
    return (
        Refusal(f"`layer_types` other than {listed(kind.layer_types)}", partial(_no_layers, kind)),
        Refusal(f"`rope_type` other than {listed(('default', *SCALINGS))}", _no_ropes),
    )


def _no_layers(kind: DecoderFamily, config: Config) -> Iterator[str]:
    layers = config.get("layer_types") or []
    layers = layers if isinstance(layers, list) else [layers]
    # A layer with a window that has no size cannot be computed anywhere.
    known = kind.layer_types if _window_size(kind, config) is not None else (FULL,)
    if others := [x for x in layers if x not in known]:
        yield f"layer_types: {short(others[0])}"


def _no_ropes(config: Config) -> Iterator[str]:
    odd = {x: y for x in _ROPES if (y := config.get(x)) and not isinstance(y, dict)}
    if odd:
        yield from (f"{key}: {short(value)}" for key, value in odd.items())
        return
    rope = rope_settings(config)
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in ("default", *SCALINGS):
        yield f"rope_type: {scaling}"
    yield from only("partial_rotary_factor", 1.0).found(rope)


def _window_size(kind: DecoderFamily, config: Config) -> int | float | None:
    """Return how many tokens layers with windows attend to, None if no layer has one."""
    windows = kind.windows
    if windows is None or (windows.asked and not config.get("use_sliding_window")):
        return None
    if config.get("sliding_window", windows.size) is None:
        return None
    return number(config, "sliding_window", windows.size)


def window_of(kind: DecoderFamily, config: Config) -> dict[str, Any] | None:
    """Return a configuration as `sliding_window`. Raises: ConfigError."""
    size, layers = _window_size(kind, config), int(number(config, "num_hidden_layers"))
    if size is None or kind.windows is None:
        return None
    full = []
    if kind.windows.by_layer:
        first = number(config, "max_window_layers", MAX_WINDOW_LAYERS)
        types = config.get("layer_types")
        slides = [i >= first for i in range(layers)] if not types else [x != FULL for x in types]
        full = [i for i, each in enumerate(slides) if not each]
    if len(full) >= layers:
        return None
    return {"size": size, "full": tuple(full), "rope_theta": None}


def keys(kind: DecoderFamily, config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`; parts of other families are left out.

    Raises: ConfigError if a size is missing or is no number.
    """
    heads, hidden = number(config, "num_attention_heads"), number(config, "hidden_size")
    rope = rope_settings(config)
    found = {
        "layers": number(config, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": number(config, "num_key_value_heads", kind.kv_heads, heads),
        "head_dim": number(config, "head_dim", kind.head_size, hidden // max(1, int(heads))),
        "mlp": number(config, "intermediate_size"),
        "vocab": number(config, "vocab_size"),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": kind.qkv_bias,
        "output_bias": kind.output_bias,
        "qk_norm": kind.qk_norm,
        "norm_eps": number(config, "rms_norm_eps", NORM_EPS),
        "rope_theta": number({**config, **rope}, "rope_theta", ROPE_THETA),
        "rope_scaling": scaling_of(rope, config),
        "sliding_window": window_of(kind, config),
        "bidirectional_images": False,
    }
    fields = DecoderModel.model_fields.items()
    rest = {key: field.default for key, field in fields if key not in _NOT_OF_FOLDERS}
    return found | {key: value for key, value in rest.items() if key not in found}


def scaling_of(rope: Config, config: Config) -> dict[str, Any] | None:
    """Return settings of rotary embeddings as `rope_scaling`. Raises: ConfigError."""
    kind = rope.get("rope_type", rope.get("type"))
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


def place(name: str, model: DecoderBlocks) -> Place:
    """Return the place of our tensor `name`, which is given without the module.

    Raises: KeyError for a name that a decoder does not have.
    """
    del model
    if name in ENDS:
        return Place(ENDS[name])
    _, index, rest = name.split(".", 2)
    layer, _, kind = rest.rpartition(".")
    return Place(f"model.layers.{index}.{_LAYERS[layer]}.{kind}")


def is_ignored(name: str, model: DecoderModel) -> bool:
    """Return whether a tensor of a file follows from others."""
    return bool(_FREQUENCIES.search(name)) or (model.tied and name == HEAD)


def fits(kind: DecoderFamily, model: DecoderModel) -> bool:
    """Return whether our block has exactly the optional parts of this kind."""
    return (model.qkv_bias, model.qk_norm, model.mrope) == (kind.qkv_bias, kind.qk_norm, None)


def config_of(model_type: str, model: DecoderModel | TalkerModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    return {
        "model_type": model_type,
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_size,
        "intermediate_size": model.mlp_width,
        "vocab_size": model.vocab,
        "tie_word_embeddings": kind_of(model).is_tied,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": rope_of(model),
    }


def windows_of(kind: DecoderFamily, model: DecoderModel) -> Config:
    """Return the settings of windows, as transformers 5 writes them."""
    windows, ours = kind.windows, model.sliding_window
    if windows is None:
        return {}
    found: Config = {"sliding_window": None if ours is None else ours.size}
    if windows.asked:
        found["use_sliding_window"] = ours is not None
    if windows.by_layer:
        full = range(model.layers) if ours is None else ours.full
        found["layer_types"] = [FULL if i in full else SLIDING for i in range(model.layers)]
    return found


def _config(name: str, model: DecoderModel) -> Config:
    return {**config_of(name, model), **windows_of(KINDS[name], model)}


def rope_of(model: DecoderBlocks) -> Config:
    """Return the settings of rotary embeddings of layers without windows."""
    scaling: Config = {"rope_type": "default"}
    if (ours := model.rope_scaling) is not None:
        used = RopeScaling.USED[ours.rope_type] | {"rope_type", "factor"}
        scaling = ours.model_dump(include=set(used), exclude_none=True)
    return {**scaling, "rope_theta": model.rope_theta}


def rope_settings(config: Config) -> dict[str, Any]:
    """Return the settings of rotary embeddings: `rope_parameters` since transformers 5."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope if isinstance(rope, dict) else {"rope_type": short(rope)}


FAMILIES = tuple(
    Family(
        model_type=name,
        kind="decoder",
        not_computed=not_computed(kind),
        keys=partial(keys, kind),
        place=place,
        is_ignored=is_ignored,
        fits=partial(fits, kind),
        config=partial(_config, name),
        architecture=f"{name.capitalize()}ForCausalLM",
    )
    for name, kind in KINDS.items()
)
