"""Qwen3-Next: Gated DeltaNet in most layers, gated attention in the others, and experts.

Decides: what its configuration means: one of its layers, a mixer and experts or an MLP, is two
layers of a hybrid model. `decoder_sparse_step` and `mlp_only_layers` select layers with experts.
Relies on: `deltanet_layers` for mixers, `qwen3_next_tensors` for names.
Leaves: the names of blocks that it shares with Qwen3.5 to `qwen3_5_tensors`.

Source: `transformers` 5.24, models/qwen3_next; the published folders for `mtp.*`.
"""

from typing import Any

from mimo_launch.hugging_face import qwen3_5_tensors, qwen3_next_tensors, rotary
from mimo_launch.hugging_face.deltanet_layers import MIXERS, mixer_config, mixer_keys
from mimo_launch.hugging_face.family import Family, moe_keys
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.moe_decoder import balance
from mimo_launch.hugging_face.qwen_vl import UNSCALED
from mimo_launch.hugging_face.refusals import only, refusals
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.spec.hybrid import EXPERTS, MLP
from mimo_launch.spec.spec import HybridModel

MODEL_TYPE = "qwen3_next"
_LAYERS, _DENSE, _EVERY = "num_hidden_layers", "mlp_only_layers", "decoder_sparse_step"
_FACTOR = "partial_rotary_factor"
_DEFAULTS: Config = {_LAYERS: 48, "num_experts": 512}
_SIZES = Settings(
    {
        "hidden": ("hidden_size", 2048),
        "heads": ("num_attention_heads", 16),
        "kv_heads": ("num_key_value_heads", 2),
        "head_dim": ("head_dim", 256),
        "vocab": ("vocab_size", 151936),
        "tied": ("tie_word_embeddings", False),
        "norm_eps": ("rms_norm_eps", 1e-6),
    },
    # What every layer has, whatever the configuration says.
    {
        "activation": "silu",
        "qk_norm": True,
        "norm_offset": True,
        "gated_attention": True,
        "mamba": None,
        "mrope": None,
        "mrope_interleaved": False,
    },
)
_EXPERTS = Settings(
    {
        "experts": "num_experts",
        "top_k": ("num_experts_per_tok", 10),
        "width": ("moe_intermediate_size", 512),
        "normalize": ("norm_topk_prob", True),
        "shared": ("shared_expert_intermediate_size", 512),
    }
)


def _with_defaults(config: Config) -> Config:
    return _DEFAULTS | config


def _pattern(config: Config, letters: str) -> str:
    """Return the letters of all layers; `letters` are the mixers' letters. Raises: ConfigError."""
    dense = list(config.get(_DENSE) or ())
    every = max(1, int(number(config, _EVERY, 1)))
    has_experts = number(config, "num_experts") > 0

    def behind(layer: int) -> str:
        is_sparse = has_experts and layer not in dense and (layer + 1) % every == 0
        return EXPERTS if is_sparse else MLP

    return "".join(each + behind(i) for i, each in enumerate(letters))


def _keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    config = _with_defaults(config)
    mixers = mixer_keys(config, "")
    pattern = _pattern(config, mixers["pattern"])
    rope = {_FACTOR: config.get(_FACTOR, 0.25), **rotary.rope_settings(config)}
    found = {
        **mixers,
        "pattern": pattern,
        **_SIZES.keys(config),
        "rope_theta": number({**config, **rope}, "rope_theta", rotary.THETA),
        "rotary_factor": number(rope, _FACTOR),
        "moe": None,
    }
    if MLP in pattern:
        found["mlp"] = number(config, "intermediate_size", 5632)
    if EXPERTS in pattern:
        found["moe"] = moe_keys(**_EXPERTS.keys(config), shared_gate=True)
    return found


def _training(config: Config) -> dict[str, Any]:
    """Return the training settings of experts, if there are any. Raises: ConfigError."""
    whole = _with_defaults(config)
    has_experts = EXPERTS in _pattern(whole, mixer_keys(whole, "")["pattern"])
    return balance(config) if has_experts else {}


def _config(model: HybridModel) -> Config:
    """Return the configuration of our hybrid model, as transformers 5 writes it."""
    behind = model.pattern[1::2]
    sizes: Config = {} if MLP not in behind else {"intermediate_size": model.mlp_width}
    if model.moe is not None:
        sizes |= _EXPERTS.config(model.moe)
    return {
        "model_type": MODEL_TYPE,
        **mixer_config(model),
        **_SIZES.config(model),
        **sizes,
        _EVERY: 1,
        _DENSE: [layer for layer, letter in enumerate(behind) if letter != EXPERTS],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": model.rope_theta or rotary.THETA,
            _FACTOR: model.rotary_factor,
        },
    }


HYBRID = Family(
    model_type=MODEL_TYPE,
    kind="hybrid",
    not_computed=refusals(
        only("hidden_act", "silu"),
        only("attention_bias", False),
        MIXERS,
        UNSCALED,
    ).after(_with_defaults),
    keys=_keys,
    place=qwen3_next_tensors.place,
    is_ignored=qwen3_5_tensors.is_ignored,
    config=_config,
    architecture="Qwen3NextForCausalLM",
    training=_training,
    layers_in_one=2,
    has_depths=True,
    depth_place=qwen3_5_tensors.depth_place,
)
