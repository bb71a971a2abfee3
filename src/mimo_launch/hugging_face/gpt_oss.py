"""Decoders of GPT-OSS: attention sinks, windows in every second layer, experts with biases.

Decides: what their configurations mean, which settings our decoder cannot compute, and the names of
their tensors: the experts of a layer are stacked, with rows of gate and up interleaved.
Relies on: `decoder` for the rest of a block.
Leaves: weights in 4 bits (MXFP4), the form of the published folders, to `quantized`.

Source: `transformers` 5.23, models/gpt_oss; arXiv:2508.10925.
"""

from functools import partial
from itertools import product
from typing import Any

from mimo_launch.hugging_face import decoder, rotary
from mimo_launch.hugging_face.family import Family, Place, Stacked, moe_keys
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.moe_decoder import balance
from mimo_launch.hugging_face.names import in_layers
from mimo_launch.hugging_face.refusals import only, refusals
from mimo_launch.hugging_face.windows import WindowKeys, in_turn
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "gpt_oss"
_BLOCK = decoder.DecoderFamily(
    qkv_bias=True,
    kv_heads=8,
    head_size=64,
    output_bias=True,
    windows=WindowKeys(size=128, by_layer=True),
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
    "rope_type": rotary.YARN,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
# The parts that every block has.
_PARTS = {"attention_sinks": True, "activation": "clamped_silu"}


def _whole(config: Config) -> Config:
    """Return a configuration with its defaults filled in."""
    config = _DEFAULTS | config
    if not rotary.rope_settings(config):
        config["rope_parameters"] = _ROPE
    return in_turn(config, every=2)


def _keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    config = _whole(config)
    # The published folders use the name of other families.
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


def _stacked(part: str, kind: str, model: DecoderModel, _layer: int, expert: int) -> Place:
    """Return the place of an expert's tensor; files stack them as [experts, inputs, outputs]."""
    if (moe := model.moe) is None:
        raise KeyError(part)
    is_down, is_weight = part == "down", kind == "weight"
    inputs, outputs = (moe.width, model.hidden) if is_down else (model.hidden, 2 * moe.width)
    tensor = ("down_proj" if is_down else "gate_up_proj") + ("" if is_weight else "_bias")
    return Place(
        f"mlp.experts.{tensor}",
        first_row=int(part == "up"),
        shape=(moe.experts, inputs, outputs) if is_weight else (moe.experts, outputs),
        stacked=Stacked(expert, step=1 if is_down else 2, transposed=is_weight),
    )


_NAMES = decoder.place | in_layers(
    decoder.LAYERS,
    {
        "mlp.router.weight": "mlp.router.weight",
        "mlp.router.bias": "mlp.router.bias",
        "attention.sinks.weight": "self_attn.sinks",
        **{
            f"mlp.experts.*.{part}.{kind}": partial(_stacked, part, kind)
            for part, kind in product(decoder.MLP, ("weight", "bias"))
        },
    },
)


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    moe = model.moe
    if moe is None:
        raise ValueError(f"a {MODEL_TYPE} has experts")
    return {
        **decoder.config_of(MODEL_TYPE, model, _BLOCK.windows),
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
    place=_NAMES,
    is_ignored=decoder.is_ignored,
    fits=partial(decoder.fits, _BLOCK),
    config=_config,
    architecture="GptOssForCausalLM",
    training=balance,
    of_experts=True,
)
