"""Decoders of Gemma 2 shape: capped scores and logits, norms on both sides, alternating windows.

Decides: what their configurations mean, which settings our decoder cannot compute; the names of
their norms, which Gemma 3 shares.
Relies on: `decoder` for the rest of a block.
Leaves: Gemma 3 to `gemma3`.

Source: `transformers` 5.23, models/gemma2; arXiv:2408.00118.
"""

from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder, rotary
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.names import in_layers
from mimo_launch.hugging_face.refusals import one_of, refusals
from mimo_launch.hugging_face.windows import WindowKeys, in_turn
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "gemma2"
ACTIVATION = "gelu_pytorch_tanh"
ACTIVATIONS = {ACTIVATION: "gelu_tanh", "silu": "silu"}
SCORE_CAP, LOGIT_CAP = "attn_logit_softcapping", "final_logit_softcapping"
_BLOCK = decoder.DecoderFamily(
    kv_heads=4, head_size=256, windows=WindowKeys(size=4096, by_layer=True)
)
_DEFAULTS: Config = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "tie_word_embeddings": True, "query_pre_attn_scalar": 256,
    SCORE_CAP: 50.0, LOGIT_CAP: 30.0,
}  # fmt: skip
place = decoder.place | in_layers(
    decoder.LAYERS,
    {
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
)


def _whole(config: Config) -> Config:
    """Return a configuration with its defaults filled in."""
    return in_turn(_DEFAULTS | config, every=2)


def cap_of(config: Config, key: str) -> float | None:
    """Return the cap of scores or logits. Raises: ConfigError."""
    if config.get(key) is None:
        return None
    cap = number(config, key)
    if cap <= 0:
        raise ConfigError(f"`{key}` is {short(cap)}, not above 0")
    return float(cap)


def shared_keys(config: Config, found: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that Gemma 2 and 3 have in addition to `found`. Raises: ConfigError."""
    scalar = number(config, "query_pre_attn_scalar")
    activation = str(config.get("hidden_activation", ACTIVATION))
    return {
        "activation": ACTIVATIONS.get(activation, activation),
        "post_norms": True,
        "norm_offset": True,
        "embedding_scale": found["hidden"] ** 0.5,
        "query_pre_attn_scalar": None if scalar == found["head_dim"] else scalar,
        "logit_softcap": cap_of(config, LOGIT_CAP),
    }


def shared_config(model: DecoderModel) -> Config:
    """Return the settings that Gemma 2 and 3 share, as transformers 5 writes them."""
    return {
        "hidden_activation": "silu" if model.activation == "silu" else ACTIVATION,
        "query_pre_attn_scalar": model.query_pre_attn_scalar or model.head_size,
        LOGIT_CAP: model.logit_softcap,
    }


def _keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    config = _whole(config)
    found = decoder.keys(_BLOCK, config)
    caps = {"attention_softcap": cap_of(config, SCORE_CAP)}
    return {**found, **shared_keys(config, found), **caps}


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    return {
        **decoder.config_of(MODEL_TYPE, model, _BLOCK.windows),
        **shared_config(model),
        SCORE_CAP: model.attention_softcap,
    }


TEXT = Family(
    model_type=MODEL_TYPE,
    kind="decoder",
    not_computed=refusals(
        *(
            one_of(key, (False, None), False)
            for key in ("attention_bias", "use_bidirectional_attention")
        ),
        one_of("hidden_activation", ACTIVATIONS, ACTIVATION),
        _BLOCK.windows.refusal(),
        rotary.REFUSAL,
    ).after(_whole),
    keys=_keys,
    place=place,
    is_ignored=decoder.is_ignored,
    fits=partial(decoder.fits, _BLOCK),
    config=_config,
    architecture="Gemma2ForCausalLM",
)
