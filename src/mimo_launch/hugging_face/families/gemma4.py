"""Gemma 4: heads of two sizes, values from keys, a number of each layer, experts beside MLPs.

Source: `transformers` 5.24, models/gemma4.
"""

from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face import decoders, per_layer, rotary
from mimo_launch.hugging_face.decoders import FULL, LAYERS, SLIDING, in_turn
from mimo_launch.hugging_face.families import gemma
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.heads_by_layer import BY_LAYER, HEAD, KEYS, SHARED, heads_of, uneven
from mimo_launch.hugging_face.refusals import Refusal, layer_types, one_of, refusals
from mimo_launch.hugging_face.settings import (
    UNDECIDED,
    Computed,
    Fixed,
    InnerSettings,
    Named,
    Settings,
    architecture,
)
from mimo_launch.hugging_face.tensors import MLP, ExpertStack, Place, in_layers

_ACTIVATION = "gelu_pytorch_tanh"
_ACTIVATIONS = {_ACTIVATION: "gelu_tanh", "silu": "silu"}
_OF_EXPERTS, _MLP = "enable_moe_block", "intermediate_size"
_ROPES: Config = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": rotary.PROPORTIONAL, rotary.FACTOR: 0.25, "rope_theta": 1_000_000.0},
}


def _whole(config: Config) -> Config:
    """Return a configuration with kinds of layers, the last one full, and rotary settings."""
    found = in_turn(config, every=6)
    types = found["layer_types"]
    if isinstance(types, list) and types:
        found = found | {"layer_types": [*types[:-1], FULL]}
    return found | {"rope_parameters": config.get("rope_parameters") or _ROPES}


def _full(config: Config) -> list[int]:
    return [i for i, each in enumerate(gemma.layers_of(config)) if each != SLIDING]


def _heads(config: Config) -> Config:
    return heads_of(config, _full(config))


def _window(config: Config) -> dict[str, Any] | None:
    found = gemma.ROPES["sliding_window"].read(config)
    if found is None:
        return None
    own = {"head_dim": number(config, HEAD, 256), "kv_heads": number(config, KEYS, 4)}
    others = {"head_dim": _heads(config)[HEAD], "kv_heads": _heads(config)[KEYS]}
    return {**found, **{key: x if x != others[key] else None for key, x in own.items()}}


def _of_windows(model: Any) -> Config:
    """Return windows, and the heads of both kinds of layers."""
    window, here = model.sliding_window, {HEAD: model.head_size, KEYS: model.num_kv_heads}
    said = {} if window is None else {HEAD: window.head_dim, KEYS: window.kv_heads}
    full = range(model.layers) if window is None else window.full
    usual = {key: said.get(key) or here[key] for key in here}
    own = {key: each for key, each in here.items() if each != usual[key]}
    return {
        **gemma.ROPES["sliding_window"].write("sliding_window", model),
        **usual,
        BY_LAYER: {str(i): own for i in full} if own else {},
    }


def _ropes(model: Any) -> Config:
    """Return rotary settings; `transformers` warns of a `factor` here, but applies it."""
    found: Config = gemma.ROPES["rope_theta"].write("rope_theta", model)
    full = found["rope_parameters"][FULL]
    kept = {key: each for key, each in full.items() if (key, each) != ("factor", 1.0)}
    return {"rope_parameters": {**found["rope_parameters"], FULL: kept}}


_PARTS: dict[str, Any] = {
    **gemma.ROPES,
    "rope_theta": replace(gemma.ROPES["rope_theta"], to_config=_ropes),
    "rope_scaling": Computed(
        lambda config: rotary.proportional(config["rope_parameters"].get(FULL) or {}),
        words=f"`rope_parameters.{FULL}`, if its type is `{rotary.PROPORTIONAL}`",
    ),
    "sliding_window": Computed(
        _window,
        _of_windows,
        f"`sliding_window`, in layers by `layer_types`, with `rope_parameters.{SLIDING}`, "
        f"`{HEAD}` and `{KEYS}`; 512, 10000",
    ),
    "activation": Named("hidden_activation", _ACTIVATIONS, _ACTIVATION),
    "bidirectional_images": Computed(
        lambda config: "in_windows" if config.get(gemma.BOTH_WAYS) == "vision" else False,
        lambda model: {gemma.BOTH_WAYS: "vision" if model.bidirectional_images else None},
        f"`in_windows` if `{gemma.BOTH_WAYS}` is `vision`",
    ),
    "post_norms": True,
    "qk_norm": True,
    "value_norm": True,
    "values_from_keys": (SHARED, False),
    "layer_scalar": 1.0,
    **per_layer.SETTINGS,
    "query_pre_attn_scalar": 1.0,
    "embedding_scale": gemma.ROOT_OF_WIDTH,
    **gemma.cap("logit_softcap", "final_logit_softcapping"),
}
# The MLP of a layer with experts is shared by all tokens.
_EXPERTS = InnerSettings(
    Settings(
        {
            "experts": "num_experts",
            "top_k": "top_k_experts",
            "width": "moe_intermediate_size",
            "shared": Computed(
                lambda config: number(config, _MLP),
                # Without one, a reader's default is another width, so that the model is refused.
                lambda moe: {_MLP: moe.shared} if moe.shared else {},
                f"`{_MLP}`; 9216",
            ),
            "separate_norms": Fixed(True),
            "learned_scale": Fixed(True),
        },
        {_OF_EXPERTS: True},
        architecture({}),
    ),
    lambda config: bool(config.get(_OF_EXPERTS)),
)
_BLOCK = decoders.sizes() | {
    "mlp": Computed(
        lambda config: UNDECIDED if config.get(_OF_EXPERTS) else number(config, _MLP),
        lambda model: {} if model.moe else {_MLP: model.mlp_width, _OF_EXPERTS: False},
        f"`{_MLP}`, without experts; 9216",
    ),
    "head_dim": Computed(
        lambda config: _heads(config)[HEAD],
        words=f"`{HEAD}` of `{BY_LAYER}`, or `global_head_dim`; 512",
    ),
    "kv_heads": Computed(
        lambda config: _heads(config)[KEYS],
        words=f"`{KEYS}` of `{BY_LAYER}`, or `num_global_key_value_heads`; `{KEYS}`",
    ),
}
GEMMA4_TEXT = Family(
    model_type="gemma4_text",
    kind="decoder",
    architecture="Gemma4ForCausalLM",
    settings=decoders.decoder(_BLOCK, **_PARTS, moe=_EXPERTS),
    tensors=replace(gemma.TENSORS, dropped=(*gemma.TENSORS.dropped, per_layer.is_of_sharer))
    | per_layer.TENSORS
    | in_layers(
        LAYERS,
        {
            "layer_scalar.weight": Place("layer_scalar"),
            "mlp.router.weight": "router.proj.weight",
            "mlp.router.norm.weight": "router.scale",
            "mlp.router.scale": "router.per_expert_scale",
            "mlp.routed_norm.weight": "pre_feedforward_layernorm_2.weight",
            "mlp.routed_post_norm.weight": "post_feedforward_layernorm_2.weight",
            "mlp.shared_post_norm.weight": "post_feedforward_layernorm_1.weight",
            **{f"mlp.shared.{x}.weight": f"mlp.{x}_proj.weight" for x in MLP},
            **{f"mlp.experts.*.{x}.weight": ExpertStack("experts", x) for x in MLP},
        },
    ),
    refused=refusals(
        one_of("attention_bias", (False, None), False),
        one_of(gemma.BOTH_WAYS, (None, "vision"), None),
        one_of("hidden_activation", _ACTIVATIONS, _ACTIVATION),
        Refusal(
            f"`{BY_LAYER}` other than heads of layers without windows",
            lambda config: uneven(config, _full(config)),
            BY_LAYER,
        ),
        layer_types((FULL, SLIDING), gemma.layers_of),
        gemma.rope_refusal("default", rotary.PROPORTIONAL),
    )
    + per_layer.REFUSED,
    defaults={
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 30, "num_attention_heads": 8, "sliding_window": 512,
        per_layer.WIDTH: 256, "tie_word_embeddings": True,
    },
    prepared=_whole,
    notes="Keys and values of layers that have those of an earlier layer "
    "(`num_kv_shared_layers`) are left out, as in `transformers`. The MLP of a layer with experts "
    "is their shared one (`moe.shared`). `transformers` has no loss that balances the load; "
    "`moe.aux_loss` decides here. The number of each layer (`layer_scalar`) is "
    "read and does not train. `transformers` gives the embedding of `pad_token_id` no gradient; "
    "here it gets one like every other token, if it occurs in a text, but its per-layer embeddings "
    "get none.",
)  # fmt: skip
