"""Decoders of Gemma 3 shape: windows in most layers, with a separate rotary base.

Decides: what their configurations mean, and which settings our decoder cannot compute.
Relies on: `gemma2` for what both decoders share, `decoder` for the rest of a block.
Leaves: the whole model with vision to `gemma3`.

Source: `transformers` 5.23, models/gemma3; arXiv:2503.19786.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder, gemma2, rotary
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.refusals import Refusal, layer_types, listed, one_of, refusals
from mimo_launch.hugging_face.windows import FULL, SLIDING, WindowKeys, in_turn
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "gemma3_text"
# Every sixth layer attends to whole sequences.
_PATTERN, _WINDOW = 6, 4096
_THETA, _LOCAL_THETA = 1e6, 10000.0
_WINDOWS = WindowKeys(size=_WINDOW, by_layer=True)
_BLOCK = decoder.DecoderFamily(qk_norm=True, kv_heads=4, head_size=256)
_DEFAULTS: Config = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "tie_word_embeddings": True, "query_pre_attn_scalar": 256,
}  # fmt: skip


def _layers(config: Config) -> list[Any]:
    """Return the kind of attention of each layer. Raises: ConfigError."""
    config = _DEFAULTS | config
    said = config.get("layer_types")
    if said is None:
        every = max(1, int(number(config, "sliding_window_pattern", _PATTERN)))
        said = in_turn(config, every)["layer_types"]
    if not isinstance(said, list):
        raise ConfigError(f"`layer_types` is {short(said)}, not a list")
    return said


def _ropes(config: Config) -> tuple[Config, Config]:
    """Return the rotary settings of layers without windows and of layers with windows.

    Versions before 5 wrote two bases, and a scaling for the layers without windows.
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


def _scaled(config: Config) -> Iterator[str]:
    everywhere, in_windows = _ropes(config)
    for rope, kinds in ((everywhere, ("default", rotary.LINEAR)), (in_windows, ("default",))):
        if rope["rope_type"] not in kinds:
            yield f"rope_type: {short(rope['rope_type'])}"


_NOT_COMPUTED = refusals(
    *(
        one_of(key, (False, None), False)
        for key in (
            # `transformers` has a setting for a cap of scores but does not apply it.
            *("attention_bias", gemma2.SCORE_CAP, "use_bidirectional_attention"),
        )
    ),
    one_of("hidden_activation", gemma2.ACTIVATIONS, gemma2.ACTIVATION),
    layer_types(_WINDOWS.layer_types, _layers),
    Refusal(f"`rope_type` other than {listed(('default', rotary.LINEAR))}", _scaled),
)


def _keys(config: Config) -> dict[str, Any]:
    config = _DEFAULTS | config
    everywhere, in_windows = _ropes(config)
    rope = everywhere if everywhere["rope_type"] in rotary.SCALINGS else {"rope_type": "default"}
    theta = {"rope_theta": number(everywhere, "rope_theta")}
    keys = decoder.keys(_BLOCK, {**config, "rope_parameters": {**rope, **theta}})
    layers, window = _layers(config), None
    if SLIDING in layers:
        window = {
            "size": number(config, "sliding_window", _WINDOW),
            "full": tuple(i for i, each in enumerate(layers) if each != SLIDING),
            "rope_theta": number(in_windows, "rope_theta"),
        }
    return {**keys, "sliding_window": window, **gemma2.shared_keys(config, keys)}


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    window = model.sliding_window
    local = {"rope_type": "default", "rope_theta": (window and window.rope_theta) or _LOCAL_THETA}
    return {
        **decoder.config_of(MODEL_TYPE, model, _WINDOWS),
        "rope_parameters": {FULL: rotary.rope_of(model), SLIDING: local},
        **gemma2.shared_config(model),
    }


TEXT = Family(
    model_type=MODEL_TYPE,
    kind="decoder",
    not_computed=_NOT_COMPUTED,
    keys=_keys,
    place=gemma2.place,
    is_ignored=decoder.is_ignored,
    fits=partial(decoder.fits, _BLOCK),
    config=_config,
    architecture="Gemma3ForCausalLM",
)
