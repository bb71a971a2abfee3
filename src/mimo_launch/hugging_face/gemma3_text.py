"""Decoders of Gemma 3 shape: windows in most layers, two rotary bases, norms on both sides.

Decides: what their configurations mean, which settings our decoder cannot compute, and the names of
their tensors.
Relies on: `decoder` for the rest of a block.
Leaves: seeing to `gemma3`.

Source: `transformers` 5.23, models/gemma3; arXiv:2503.19786.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.decoder import FULL, SLIDING
from mimo_launch.hugging_face.family import Family, Place
from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.refusals import Refusal, listed, one_of, refusals
from mimo_launch.spec.language_models import DecoderBlocks
from mimo_launch.spec.spec import DecoderModel

TEXT_TYPE = "gemma3_text"
_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}
_ACTIVATION = "gelu_pytorch_tanh"
# Every sixth layer attends to whole sequences.
_PATTERN, _WINDOW, _SCALAR = 6, 4096, 256
_THETA, _LOCAL_THETA = 1e6, 10000.0
_BLOCK = decoder.DecoderFamily(qkv_bias=False, qk_norm=True, kv_heads=4, head_size=256)
_DEFAULTS: Config = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "tie_word_embeddings": True,
}  # fmt: skip
_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}


def _kinds_of_layers(config: Config) -> Iterator[str]:
    for each in dict.fromkeys(_layers(config)):
        if each not in (FULL, SLIDING):
            yield f"layer_types: {short(each)}"


def _scaled(config: Config) -> Iterator[str]:
    everywhere, in_windows = _ropes(config)
    for rope, kinds in ((everywhere, ("default", decoder.LINEAR)), (in_windows, ("default",))):
        if rope["rope_type"] not in kinds:
            yield f"rope_type: {short(rope['rope_type'])}"


_NOT_COMPUTED = refusals(
    *(
        one_of(key, (False, None), False)
        for key in (
            *("attention_bias", "attn_logit_softcapping", "final_logit_softcapping"),
            *("use_bidirectional_attention", "quantization_config"),
        )
    ),
    one_of("hidden_activation", _ACTIVATIONS, _ACTIVATION),
    Refusal(f"`layer_types` other than {listed((FULL, SLIDING))}", _kinds_of_layers),
    Refusal(f"`rope_type` other than {listed(('default', decoder.LINEAR))}", _scaled),
)


def _layers(config: Config) -> list[Any]:
    """Return the kind of attention of each layer. Raises: ConfigError."""
    said = config.get("layer_types")
    if said is None:
        every = int(number(config, "sliding_window_pattern", _PATTERN))
        depth = int(number(config, "num_hidden_layers", _DEFAULTS["num_hidden_layers"]))
        return [SLIDING if (i + 1) % max(1, every) else FULL for i in range(depth)]
    if not isinstance(said, list):
        raise ConfigError(f"`layer_types` is {short(said)}, not a list")
    return said


def _ropes(config: Config) -> tuple[Config, Config]:
    """Return the rotary settings of layers without windows and of those with windows.

    Versions before 5 wrote two bases, and a scaling of the layers without windows.
    """
    both = config.get("rope_parameters")
    both = both if isinstance(both, dict) else {}
    scaling = config.get("rope_scaling")
    scaling = scaling if isinstance(scaling, dict) else {}
    scaled = {"rope_type": scaling.get("type", "default"), **scaling}
    everywhere = {"rope_theta": config.get("rope_theta", _THETA), **scaled}
    local = config.get("rope_local_base_freq", _LOCAL_THETA)
    in_windows = {"rope_theta": local, "rope_type": "default"}
    return {**everywhere, **(both.get(FULL) or {})}, {**in_windows, **(both.get(SLIDING) or {})}


def _keys(config: Config) -> dict[str, Any]:
    config = _DEFAULTS | config
    everywhere, in_windows = _ropes(config)
    rope = everywhere if everywhere["rope_type"] in decoder.SCALINGS else {"rope_type": "default"}
    theta = {"rope_theta": number(everywhere, "rope_theta")}
    keys = decoder.keys(_BLOCK, {**config, "rope_parameters": {**rope, **theta}})
    layers, window = _layers(config), None
    if SLIDING in layers:
        window = {
            "size": number(config, "sliding_window", _WINDOW),
            "full": tuple(i for i, each in enumerate(layers) if each != SLIDING),
            "rope_theta": number(in_windows, "rope_theta"),
        }
    scalar = number(config, "query_pre_attn_scalar", _SCALAR)
    activation = str(config.get("hidden_activation", _ACTIVATION))
    return {
        **keys,
        "sliding_window": window,
        "activation": _ACTIVATIONS.get(activation, activation),
        "post_norms": True,
        "norm_offset": True,
        "embedding_scale": keys["hidden"] ** 0.5,
        "query_pre_attn_scalar": None if scalar == keys["head_dim"] else scalar,
    }


def _place(name: str, model: DecoderBlocks) -> Place:
    """Return the place of our tensor; Gemma's norms have other names. Raises: KeyError."""
    layer, _, kind = name.rpartition(".")
    prefix, _, part = layer.rpartition(".")
    if part in _NORMS:
        _, index = prefix.split(".")
        return Place(f"model.layers.{index}.{_NORMS[part]}.{kind}")
    return decoder.place(name, model)


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    window = model.sliding_window
    full = range(model.layers) if window is None else window.full
    local = {"rope_type": "default", "rope_theta": (window and window.rope_theta) or _LOCAL_THETA}
    theirs = {ours: name for name, ours in _ACTIVATIONS.items()}
    return {
        **decoder.config_of(TEXT_TYPE, model),
        "rope_parameters": {FULL: decoder.rope_of(model), SLIDING: local},
        "sliding_window": _WINDOW if window is None else window.size,
        "layer_types": [FULL if i in full else SLIDING for i in range(model.layers)],
        "hidden_activation": theirs[model.activation],
        "query_pre_attn_scalar": model.query_pre_attn_scalar or model.head_size,
    }


TEXT = Family(
    model_type=TEXT_TYPE,
    kind="decoder",
    not_computed=_NOT_COMPUTED,
    keys=_keys,
    place=_place,
    is_ignored=decoder.is_ignored,
    fits=partial(decoder.fits, _BLOCK),
    config=_config,
    architecture="Gemma3ForCausalLM",
)
