"""Decoders of Llama, Qwen2 and Qwen3 shape.

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

from mimo_launch.hugging_face.family import Family, Place, differs
from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.language_models import DecoderBlocks
from mimo_launch.spec.spec import DecoderModel, RopeScaling, TalkerModel


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """The optional parts of a block, and the defaults of its configuration.

    The default None follows from other keys.
    """

    qkv_bias: bool
    qk_norm: bool
    kv_heads: int | None
    head_size: int | None


KINDS = {
    "llama": DecoderFamily(qkv_bias=False, qk_norm=False, kv_heads=None, head_size=None),
    "qwen2": DecoderFamily(qkv_bias=True, qk_norm=False, kv_heads=32, head_size=None),
    "qwen3": DecoderFamily(qkv_bias=False, qk_norm=True, kv_heads=32, head_size=128),
}
NORM_EPS, ROPE_THETA = 1e-6, 10000.0
# Layers before this one have no window.
MAX_WINDOW_LAYERS = 28
# The scalings of rotary embeddings that our decoder has.
LLAMA3, LINEAR = SCALINGS = ("llama3", "linear")

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ENDS = {"embedding.weight": EMBEDDING, "head.weight": HEAD, "norm.weight": "model.norm.weight"}
_LAYERS = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkvo"},
    **{f"attention.{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
    **{f"mlp.{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
}
# Old versions of transformers saved the frequencies of rotary embeddings, which follow from theta.
_FREQUENCIES = re.compile(r"rotary_emb\.inv_freq$")


def not_computed(config: Config, *, by_layer: bool = True) -> Iterator[str]:
    """Yield, as `key: value`, the settings that our decoder cannot compute.

    `by_layer`: a sliding window is that of some layers, not of all.
    """
    for key, only in (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("quantization_config", None),
        ("partial_rotary_factor", 1.0),
    ):
        if differs(config, key, only):
            yield f"{key}: {short(config[key])}"
    if _has_window(config, by_layer=by_layer):
        yield "use_sliding_window: true"
    layers = config.get("layer_types") or []
    others = [x for x in layers if x != "full_attention"] if isinstance(layers, list) else [layers]
    if others:
        yield f"layer_types: {short(others[0])}"
    rope = rope_settings(config)
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in ("default", *SCALINGS):
        yield f"rope_type: {scaling}"
    if differs(rope, "partial_rotary_factor", 1.0):
        yield f"partial_rotary_factor: {rope['partial_rotary_factor']}"


def _has_window(config: Config, *, by_layer: bool) -> bool:
    """Return whether a layer of a Qwen attends in a window; `layer_types` are checked elsewhere."""
    asked = config.get("use_sliding_window") and config.get("model_type") != "llama"
    if not asked or config.get("sliding_window", 0) is None:
        return False
    if not by_layer:
        return True
    first = number(config, "max_window_layers", MAX_WINDOW_LAYERS)
    return not config.get("layer_types") and number(config, "num_hidden_layers") > first


def keys(kind: DecoderFamily, config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`.

    Raises: ConfigError if a size is missing or is no number.
    """
    heads, hidden = number(config, "num_attention_heads"), number(config, "hidden_size")
    rope = rope_settings(config)
    return {
        "layers": number(config, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": number(config, "num_key_value_heads", kind.kv_heads, heads),
        "head_dim": number(config, "head_dim", kind.head_size, hidden // max(1, int(heads))),
        "mlp": number(config, "intermediate_size"),
        "vocab": number(config, "vocab_size"),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": kind.qkv_bias,
        "qk_norm": kind.qk_norm,
        "norm_eps": number(config, "rms_norm_eps", NORM_EPS),
        "rope_theta": number({**config, **rope}, "rope_theta", ROPE_THETA),
        "rope_scaling": scaling_of(rope),
        "mrope": None,
        "mrope_interleaved": False,
        "sliding_window": None,
        "activation": "silu",
        "post_norms": False,
        "norm_offset": False,
        "embedding_scale": None,
        "query_pre_attn_scalar": None,
        "moe": None,
    }


def scaling_of(rope: Config) -> dict[str, Any] | None:
    """Return settings of rotary embeddings as `rope_scaling`. Raises: ConfigError."""
    kind = rope.get("rope_type", rope.get("type"))
    fields = RopeScaling.model_fields
    if kind == LINEAR:
        unused = {key: field.default for key, field in fields.items()}
        return {**unused, "rope_type": LINEAR, "factor": number(rope, "factor")}
    if kind != LLAMA3:
        return None
    return {"rope_type": LLAMA3, **{key: number(rope, key) for key in fields if key != "rope_type"}}


def place(name: str, model: DecoderBlocks) -> Place:
    """Return the place of our tensor `name`, which is given without the module.

    Raises: KeyError for a name that a decoder does not have.
    """
    del model
    if name in _ENDS:
        return Place(_ENDS[name])
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


def rope_of(model: DecoderBlocks) -> Config:
    """Return the settings of rotary embeddings of layers without windows."""
    scaling: Config = {"rope_type": "default"}
    if model.rope_scaling is not None:
        is_linear = model.rope_scaling.rope_type == LINEAR
        used = {"rope_type", "factor"} if is_linear else None
        scaling = model.rope_scaling.model_dump(include=used)
    return {**scaling, "rope_theta": model.rope_theta}


def rope_settings(config: Config) -> dict[str, Any]:
    """Return the settings of rotary embeddings: `rope_parameters` since transformers 5."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope if isinstance(rope, dict) else {"rope_type": short(rope)}


FAMILIES = tuple(
    Family(
        model_type=name,
        kind="decoder",
        not_computed=not_computed,
        keys=partial(keys, kind),
        place=place,
        is_ignored=is_ignored,
        fits=partial(fits, kind),
        config=partial(config_of, name),
        architecture=f"{name.capitalize()}ForCausalLM",
    )
    for name, kind in KINDS.items()
)
