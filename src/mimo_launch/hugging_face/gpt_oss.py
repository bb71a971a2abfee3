"""Decoders of GPT-OSS: attention sinks, windows in every second layer, experts with biases.

Decides: what their configurations mean, which settings our decoder cannot compute, and the names of
their tensors: the experts of a layer are stacked, gates and what they gate in turn.
Relies on: `decoder` for the rest of a block.
Leaves: weights in 4 bits (MXFP4), the form of the published folders, to `quantized`.

Source: `transformers` 5.23, models/gpt_oss; arXiv:2508.10925.
"""

import re
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.decoder import FULL, SLIDING
from mimo_launch.hugging_face.family import Family, Place, Stacked, moe_keys
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.moe_decoder import balance
from mimo_launch.hugging_face.refusals import only, refusals
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "gpt_oss"
_WINDOW = 128
_BLOCK = decoder.DecoderFamily(
    qkv_bias=True,
    qk_norm=False,
    kv_heads=8,
    head_size=64,
    output_bias=True,
    windows=decoder.WindowKeys(size=_WINDOW, by_layer=True),
)
_DEFAULTS: Config = {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
}
_ROPE: Config = {
    "rope_type": decoder.YARN,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
# The parts of our block that are always there.
_PARTS = {"attention_sinks": True, "activation": "clamped_silu"}
_EXPERT = re.compile(r"layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)\.(weight|bias)")
_OTHERS = {
    "mlp.router.weight": "mlp.router.weight",
    "mlp.router.bias": "mlp.router.bias",
    "attention.sinks.weight": "self_attn.sinks",
}


def _whole(config: Config) -> Config:
    """Return a configuration with what follows if it is not written."""
    config = _DEFAULTS | config
    if not decoder.rope_settings(config):
        config["rope_parameters"] = _ROPE
    if not config.get("layer_types"):
        layers = range(int(number(config, "num_hidden_layers")))
        config["layer_types"] = [FULL if i % 2 else SLIDING for i in layers]
    return config


def _keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    config = _whole(config)
    # The published folders call it as other families do.
    count = "num_experts" if "num_experts" in config else "num_local_experts"
    found = decoder.keys(_BLOCK, config)
    del found["mlp"]
    moe = moe_keys(
        experts=number(config, count),
        top_k=number(config, "num_experts_per_tok"),
        width=number(config, "intermediate_size"),
        bias=True,
    )
    return {**found, **_PARTS, "moe": moe}


def _place(name: str, model: DecoderModel) -> Place:
    """Return the place of our tensor `name`, which is given without the module. Raises: KeyError.

    A file has [experts, inputs, outputs] for the weights of a layer.
    """
    found = _EXPERT.fullmatch(name)
    if found is None:
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            if rest in _OTHERS:
                return Place(f"model.layers.{layer}.{_OTHERS[rest]}")
        return decoder.place(name, model)
    moe = model.moe
    if moe is None:
        raise KeyError(name)
    layer, expert, part, kind = found.groups()
    is_down, is_weight = part == "down", kind == "weight"
    inputs, outputs = (moe.width, model.hidden) if is_down else (model.hidden, 2 * moe.width)
    tensor = ("down_proj" if is_down else "gate_up_proj") + ("" if is_weight else "_bias")
    return Place(
        f"model.layers.{layer}.mlp.experts.{tensor}",
        first_row=int(part == "up"),
        shape=(moe.experts, inputs, outputs) if is_weight else (moe.experts, outputs),
        stacked=Stacked(int(expert), step=1 if is_down else 2, transposed=is_weight),
    )


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    moe = model.moe
    if moe is None:
        raise ValueError(f"a {MODEL_TYPE} has experts")
    window = decoder.windows_of(_BLOCK, model)
    return {
        **decoder.config_of(MODEL_TYPE, model),
        **window,
        "sliding_window": window["sliding_window"] or _WINDOW,
        "intermediate_size": moe.width,
        "num_local_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "attention_bias": True,
    }


TEXT = Family(
    model_type=MODEL_TYPE,
    kind="decoder",
    not_computed=(
        decoder.not_computed(_BLOCK)
        + refusals(only("swiglu_alpha", 1.702), only("swiglu_limit", 7.0))
    ).after(_whole),
    keys=_keys,
    place=_place,
    is_ignored=decoder.is_ignored,
    fits=partial(decoder.fits, _BLOCK),
    config=_config,
    architecture="GptOssForCausalLM",
    training=balance,
    of_experts=True,
)
