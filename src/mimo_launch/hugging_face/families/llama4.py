"""Llama 4: chunks, layers without rotary positions, heads of one length, inputs scaled by scores.

Source: `transformers` 5.24, models/llama4.
"""

from collections.abc import Iterator
from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face import refusals as refused
from mimo_launch.hugging_face.families import cohere, smollm3
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.settings import Computed, Fixed, Settings, defaults_of
from mimo_launch.hugging_face.tensors import MLP, ExpertStack, in_layers
from mimo_launch.spec.layers import QueryScaling, RopeScaling, SlidingWindow

_FULL, _CHUNKED, _SIZE = decoders.FULL, "chunked_attention", ("attention_chunk_size", 8192)
_EXPERTS, _STEP, _WIDTH = "moe_layers", ("interleave_moe_layer_step", 1), "intermediate_size"
_NORMED = ("use_qk_norm", True)
_TUNES, _BETA, _LENGTH = "attn_temperature_tuning", ("attn_scale", 0.1), ("floor_scale", 8192)


def _prepared(config: Config) -> Config:
    """Return a configuration with lists of layers. Raises: ConfigError."""
    key = "no_rope_layers"
    turns = smollm3.prepared({**config, key: config.get(key) or None})[key]
    types = [_CHUNKED if turn else _FULL for turn in turns]
    types = types[: int(number(config, "num_hidden_layers"))]
    return config | {key: turns, "layer_types": config.get("layer_types") or types}


def _nope(config: Config) -> dict[str, Any] | None:
    found = smollm3.still_layers(config)
    if found is None or not config.get(_TUNES, True):
        return found
    growth = {"beta": number(config, *_BETA), "length": number(config, *_LENGTH)}
    growth = defaults_of(QueryScaling) | growth | {"first_position": 1}
    return found | {"query_scaling": growth}


def _nope_as_written(model: Any) -> Config:
    growth = None if model.nope is None else model.nope.query_scaling
    tuned = {} if growth is None else {_BETA[0]: growth.beta, _LENGTH[0]: growth.length}
    return {**smollm3.turns_as_written(model), _TUNES: growth is not None, **tuned}


def _chunks(config: Config) -> dict[str, Any] | None:
    full = tuple(i for i, each in enumerate(config["layer_types"]) if each == _FULL)
    if config.get(*_SIZE) is None or len(full) == len(config["layer_types"]):
        return None
    chunked = {"size": number(config, *_SIZE), "chunked": True, "full": full}
    return defaults_of(SlidingWindow) | chunked


def _chunks_as_written(model: Any) -> Config:
    window = model.sliding_window
    full = range(model.layers) if window is None else window.full
    types = [_FULL if i in full else _CHUNKED for i in range(model.layers)]
    return {"layer_types": types, _SIZE[0]: None if window is None else window.size}


def _uneven(config: Config) -> bool:
    every, layers = int(number(config, *_STEP)), int(number(config, "num_hidden_layers"))
    said = config.get(_EXPERTS)
    return said is not None and said != list(range(every - 1, layers, every))


def _grown(config: Config) -> Iterator[str]:
    """Yield a scaling that makes scores grow: norms after the rotation take that back."""
    scaling = rotary.scaling_of(config) if config.get(*_NORMED) else None
    if scaling is not None and RopeScaling(**scaling).stretch != 1:
        yield f"rope_type: {scaling['rope_type']} with {_NORMED[0]}: true"


LLAMA4_TEXT = Family(
    model_type="llama4_text",
    kind="decoder",
    architecture="Llama4ForCausalLM",
    settings=decoders.decoder(
        decoders.sizes(kv_heads=8, head_size=128) | {"mlp": ("intermediate_size_mlp", 16384)},
        **{key: cohere.PARTS[key] for key in ("qkv_bias", "output_bias")},
        rotary_interleaved=True,
        l2_qk_norm=_NORMED,
        nope=Computed(_nope, _nope_as_written, "layers with 0 in `no_rope_layers`; every fourth"),
        sliding_window=Computed(_chunks, _chunks_as_written, f"`{_SIZE[0]}`; 8192"),
        moe=decoders.experts({
            "experts": ("num_local_experts", 16), "top_k": ("num_experts_per_tok", 1),
            "width": _WIDTH, "every": _STEP, "score": Fixed("sigmoid"), "normalize": Fixed(False),
            "shared": Computed(lambda config: number(config, _WIDTH), words=f"`{_WIDTH}`"),
            "scale_inputs": Fixed(True),
        }),
    ),
    tensors=decoders.TENSORS
    | in_layers(
        f"{decoders.LAYERS}feed_forward.",
        {
            "router.weight": "router.weight",
            **{x: f"{x}_proj" for x in MLP},
            **{f"shared.{x}.weight": f"shared_expert.{x}_proj.weight" for x in MLP},
            **{f"experts.*.{x}.weight": ExpertStack("experts", x, turned=True) for x in MLP},
        },
        "layers.*.mlp.",
    ),
    refused=cohere.BIASES
    + refused.refusals(
        refused.only("hidden_act", "silu"),
        rotary.rope_refusal(),
        refused.layer_types((_FULL, _CHUNKED), lambda config: config["layer_types"]),
        refused.Refusal(
            f"a scaling of positions with an `attention_factor` other than 1, with `{_NORMED[0]}`",
            _grown,
        ),
        refused.where(_EXPERTS, f"other than every n-th by `{_STEP[0]}`", _uneven),
    ),
    random=("attention_dropout", "router_jitter_noise"),
    training=Settings(decoders.BALANCE),
    defaults={
        "vocab_size": 202048, "hidden_size": 5120, "num_hidden_layers": 48, _WIDTH: 8192,
        "num_attention_heads": 40, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
    },
    prepared=_prepared,
    notes="Chunks are windows that do not slide. Norms of heads have no weights (`l2_qk_norm`), "
    "and are in layers that rotate; scores multiply what experts read (`scale_inputs`).",
)  # fmt: skip
