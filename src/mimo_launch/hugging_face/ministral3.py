"""Ministral 3: a Mistral with queries that grow with their positions.

Decides: what its configuration means; by default rotary embeddings are scaled by YaRN.
Relies on: `decoder` for the rest of a block and the names of tensors.
Leaves: the whole model with vision to `mistral3`.

Source: `transformers` 5.24, models/ministral3.
"""

from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder, rotary
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.windows import WindowKeys
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "ministral3"
_BETA, _LENGTH = "llama_4_scaling_beta", "original_max_position_embeddings"
_BLOCK = decoder.DecoderFamily(
    qkv_bias=False,
    qk_norm=False,
    kv_heads=8,
    head_size=128,
    windows=WindowKeys(size=None),
)
_ROPE: Config = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, _LENGTH: 16384, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, _BETA: 0.1,
}  # fmt: skip
_DEFAULTS: Config = {
    "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
    "num_attention_heads": 32, "rms_norm_eps": 1e-5,
}  # fmt: skip


def _whole(config: Config) -> Config:
    """Return a configuration with its defaults filled in."""
    rope = {} if rotary.rope_settings(config) else {"rope_parameters": _ROPE}
    return {**_DEFAULTS, **config, **rope}


def _keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    config = _whole(config)
    rope = rotary.rope_settings(config)
    beta = number(rope, _BETA)
    growth = {"beta": beta, "length": number(rope, _LENGTH)} if beta else None
    return {**decoder.keys(_BLOCK, config), "query_scaling": growth}


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    rope, growth = rotary.rope_of(model), model.query_scaling
    rope[_BETA] = 0.0 if growth is None else growth.beta
    if growth is not None:
        rope[_LENGTH] = growth.length
    return {
        **decoder.config_of(MODEL_TYPE, model, _BLOCK.windows),
        "rope_parameters": {_LENGTH: _ROPE[_LENGTH], **rope},
    }


TEXT = Family(
    model_type=MODEL_TYPE,
    kind="decoder",
    not_computed=decoder.not_computed(_BLOCK).after(_whole),
    keys=_keys,
    place=decoder.place,
    is_ignored=decoder.is_ignored,
    fits=partial(decoder.fits, _BLOCK),
    config=_config,
    architecture="Ministral3ForCausalLM",
)
