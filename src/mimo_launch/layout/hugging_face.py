"""What a Hugging Face folder says about the decoder in it: sizes by our keys, names of tensors.

Decides: which architectures are read, what their `config.json` means in keys of a spec, which of
its settings this decoder cannot compute, and what its tensors are called.
Relies on: `config.json` as transformers 4 and 5 write it; defaults are those of its config classes.
Leaves: comparing with a spec to `checks.hugging_face`, reading tensors to `train.checkpoint`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

# Which of the optional parts of a block each `model_type` has.
DECODERS: dict[str, dict[str, bool]] = {
    "llama": {"qkv_bias": False, "qk_norm": False},
    "qwen2": {"qkv_bias": True, "qk_norm": False},
    "qwen3": {"qkv_bias": False, "qk_norm": True},
}
# What transformers takes where a key is left out; None says that it follows from other keys.
KV_HEADS = {"llama": None, "qwen2": 32, "qwen3": 32}
HEAD_SIZE = {"llama": None, "qwen2": None, "qwen3": 128}
NORM_EPS, ROPE_THETA = 1e-6, 10000.0

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


class ConfigError(ValueError):
    """`config.json` cannot be read, or lacks what it must say; the message is one line."""


def is_hugging_face(folder: Path) -> bool:
    """Return whether a folder is that of a Hugging Face model, whatever the model."""
    return (folder / CONFIG).is_file()


def has_weights(folder: Path) -> bool:
    """Return whether there are safetensors under the names that transformers gives them."""
    return (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()


def read_config(folder: Path) -> dict[str, Any]:
    """Return `config.json`. Raises: ConfigError."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{CONFIG} is no JSON object")
    return config


def not_computed(config: dict[str, Any]) -> Iterator[str]:
    """Yield, as `key: value`, what the model asks for and our decoder does not do."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in DECODERS:
        yield f"model_type: {kind}"
        return
    for key, only in (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("use_sliding_window", False),
        ("quantization_config", None),
        ("partial_rotary_factor", 1.0),
    ):
        if (value := config.get(key, only)) != only:
            yield f"{key}: {_short(value)}"
    layers = config.get("layer_types") or []
    others = [x for x in layers if x != "full_attention"] if isinstance(layers, list) else [layers]
    if others:
        yield f"layer_types: {_short(others[0])}"
    rope = _rope(config)
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling != "default":
        yield f"rope_type: {scaling}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        yield f"partial_rotary_factor: {rope['partial_rotary_factor']}"


def decoder_keys(config: dict[str, Any]) -> dict[str, int | float | bool]:
    """Return the keys of `model` that say the same as a configuration whose type is in `DECODERS`.

    Raises: ConfigError if a size is missing or is no number.
    """
    kind = config["model_type"]
    heads, hidden = _number(config, "num_attention_heads"), _number(config, "hidden_size")
    return {
        "layers": _number(config, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _number(config, "num_key_value_heads", KV_HEADS[kind], heads),
        "head_dim": _number(config, "head_dim", HEAD_SIZE[kind], hidden // max(1, int(heads))),
        "mlp": _number(config, "intermediate_size"),
        "vocab": _number(config, "vocab_size"),
        "tied": bool(config.get("tie_word_embeddings", False)),
        **DECODERS[kind],
        "norm_eps": _number(config, "rms_norm_eps", NORM_EPS),
        "rope_theta": _number({**config, **_rope(config)}, "rope_theta", ROPE_THETA),
    }


def tensor_name(name: str) -> str:
    """Return what transformers calls the tensor that we call `name`, less the module.

    Raises: KeyError for a name that a decoder does not have.
    """
    if name in _ENDS:
        return _ENDS[name]
    _, number, rest = name.split(".", 2)
    layer, _, kind = rest.rpartition(".")
    return f"model.layers.{number}.{_LAYERS[layer]}.{kind}"


def is_ignored(name: str, *, tied: bool) -> bool:
    """Return whether a tensor of a file is left out by rule: it says what others say already."""
    return bool(_FREQUENCIES.search(name)) or (tied and name == HEAD)


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of rotary embeddings: `rope_parameters` since transformers 5."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope if isinstance(rope, dict) else {"rope_type": _short(rope)}


def _number(config: dict[str, Any], key: str, *defaults: float | None) -> int | float:
    """Return a number, or the first default that is one.

    A key that is there and null follows from other keys: the last default.
    """
    options = [None, *defaults[-1:]] if key in config else list(defaults)
    found = next((x for x in (config.get(key), *options) if x is not None), None)
    if found is None:
        raise ConfigError(f"{CONFIG} does not say `{key}`")
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ConfigError(f"`{key}` in {CONFIG} is {_short(found)}, not a number")
    return found


def _short(value: Any) -> str:
    """Return a value of the file in a few characters."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
