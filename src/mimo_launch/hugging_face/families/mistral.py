"""Mistral, Mixtral, Ministral: decoders with windows, with experts, and with growing queries.

Sources: `transformers` 5.23, models/mistral and models/mixtral; 5.24, models/ministral and
models/ministral3;
arXiv:2401.04088.
"""

from collections.abc import Callable
from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import FULL, LAYERS, SLIDING, WindowKeys
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.settings import Computed, Settings, defaults_of
from mimo_launch.hugging_face.tensors import in_layers
from mimo_launch.spec.layers import QueryScaling

_WINDOWS, _NO_SIZE = WindowKeys(), WindowKeys(size=None)
MISTRAL = Family(
    model_type="mistral",
    kind="decoder",
    architecture="MistralForCausalLM",
    published=("mistralai/Mistral-7B-v0.3",),
    settings=decoders.decoder(decoders.sizes(kv_heads=8), _WINDOWS),
    tensors=decoders.TENSORS,
    refused=decoders.not_computed(_WINDOWS),
    notes="All layers have windows.",
)
_BY_LAYER = WindowKeys(by_layer=True)


def _with_layers(config: Config) -> Config:
    """Return a configuration with kinds of layers; by default all have windows, if any."""
    has = config.get("sliding_window", _BY_LAYER.size) is not None
    types = [SLIDING if has else FULL] * int(number(config, "num_hidden_layers"))
    return {**config, "layer_types": config.get("layer_types") or types}


MINISTRAL = Family(
    model_type="ministral",
    kind="decoder",
    architecture="MinistralForCausalLM",
    published=("mistralai/Ministral-8B-Instruct-2410",),
    settings=decoders.decoder(decoders.sizes(kv_heads=8), _BY_LAYER),
    tensors=decoders.TENSORS,
    refused=decoders.not_computed(_BY_LAYER),
    defaults={
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32,
    },
    prepared=_with_layers,
    rank=1,
    notes="Layers with windows are those that `layer_types` names, by default all.",
)  # fmt: skip
_BLOCK = decoders.sizes(kv_heads=8)
del _BLOCK["mlp"]
_MOE = {"experts": decoders.count(), "top_k": "num_experts_per_tok", "width": "intermediate_size"}
_WEIGHTS = {"gate": "w1", "up": "w3", "down": "w2"}.items()
MIXTRAL = Family(
    model_type="mixtral",
    kind="decoder",
    architecture="MixtralForCausalLM",
    published=("mistralai/Mixtral-8x7B-v0.1",),
    settings=decoders.decoder(_BLOCK, _NO_SIZE, moe=decoders.experts(_MOE)),
    tensors=decoders.TENSORS
    | in_layers(
        f"{LAYERS}block_sparse_moe.",
        {
            "router.weight": "gate.weight",
            **{f"experts.*.{ours}.weight": f"experts.*.{w}.weight" for ours, w in _WEIGHTS},
        },
        "layers.*.mlp.",
    ),
    refused=decoders.not_computed(_NO_SIZE) + refusals(decoders.FIRST_DENSE),
    random=("attention_dropout", "router_jitter_noise"),
    training=Settings(decoders.BALANCE),
    aliases=decoders.EXPERTS_ALIAS,
    defaults={
        "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 14336,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6,
    },
    notes="`mlp` has no effect and is free. All layers have windows.",
)  # fmt: skip
_BETA, _LENGTH = "llama_4_scaling_beta", rotary.LENGTH
_ROPE: Config = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, _LENGTH: 16384, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, _BETA: 0.1,
}  # fmt: skip


def _with_rope(config: Config) -> Config:
    return config if rotary.rope_settings(config) else {**config, "rope_parameters": _ROPE}


def _growth(config: Config) -> dict[str, Any] | None:
    rope = rotary.rope_settings(config)
    beta = number(rope, _BETA)
    is_plain = rotary.type_of(rope, "default") == "default"
    length = number(rope, _LENGTH) if is_plain else rotary.original_of(config)
    found = {"beta": beta, "length": length}
    return defaults_of(QueryScaling) | found if beta else None


def _as_written(model: Any) -> Config:
    if (growth := model.query_scaling) is not None:
        return {_BETA: growth.beta, _LENGTH: growth.length}
    return {_BETA: 0.0, _LENGTH: rotary.rope_of(model).get(_LENGTH, _ROPE[_LENGTH])}


def growing(also: Callable[[Any], Config] = lambda _: {}) -> dict[str, Any]:
    """Return the entries of queries that grow, and of rotary positions; `also` is as in `rope`."""
    return {
        **rotary.rope(lambda model: {**_as_written(model), **also(model)}),
        "query_scaling": Computed(
            _growth, words=f"`{_BETA}` and `{_LENGTH}` of `rope_parameters`; 0.1, 16384"
        ),
    }


MINISTRAL3 = Family(
    model_type="ministral3",
    kind="decoder",
    architecture="Ministral3ForCausalLM",
    settings=decoders.decoder(
        decoders.sizes(kv_heads=8, head_size=128),
        _NO_SIZE,
        **growing(),
    ),
    tensors=decoders.TENSORS,
    refused=decoders.not_computed(_NO_SIZE),
    defaults={
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 34, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
    },
    prepared=_with_rope,
    rank=1,
    notes="A Mistral with YaRN, unless `rope_parameters` say otherwise. With `query_scaling`, "
    "after the rotation, the query of a token at position p of its document is multiplied by "
    "1 + beta ln(1 + floor(p / length)); each packed document counts from 0.",
)  # fmt: skip
