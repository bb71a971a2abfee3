"""Nemotron-H: hybrid models of Mamba-2, attention, MLP and mixture-of-experts layers.

Decides: what its configuration means, which settings our hybrid model cannot compute, and the
places of our segments in its tensors, of which two are fused.
Relies on: `config.json` as transformers 5 and NVIDIA's folders have it; defaults are those of its
config class.
Leaves: comparing with a spec to `checks.init_from`, reading tensors to `checkpoint`.

Source: `transformers` 5.23, models/nemotron_h; arXiv:2504.03624. The names of embedding and head
are those of `decoder`, so that a vocabulary can grow in the same way.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face.decoder import EMBEDDING, HEAD
from mimo_launch.hugging_face.family import Family, NoSuchPart, Part, Place, moe_keys, rows_of
from mimo_launch.hugging_face.folder import Config, ConfigError, number
from mimo_launch.hugging_face.refusals import Refusal, listed, only, refusals
from mimo_launch.spec.hybrid import ATTENTION, EXPERTS, MAMBA, MLP, HybridModel, MambaSizes

NEMOTRON_H, _MOE = "nemotron_h", "moe"
# Letters by the names of layers, including those of older versions.
_LETTERS = {
    "linear_attention": MAMBA,
    "mamba": MAMBA,
    "full_attention": ATTENTION,
    "attention": ATTENTION,
    "mlp": MLP,
    _MOE: EXPERTS,
}
_NAMES = {MAMBA: "linear_attention", ATTENTION: "full_attention", MLP: "mlp", EXPERTS: _MOE}
_ENDS = {"embedding.weight": EMBEDDING, "head.weight": HEAD, "norm.weight": "model.norm_f.weight"}
_LAYERS = {
    "norm": "norm",
    **{f"attention.{x}": f"mixer.{x}_proj" for x in "qkvo"},
    **{f"mlp.{x}": f"mixer.{x}_proj" for x in ("up", "down")},
    "mamba.norm": "mixer.norm",
    "mamba.out": "mixer.out_proj",
    "moe.router": "mixer.gate",
    **{f"moe.shared.{x}": f"mixer.shared_experts.{x}_proj" for x in ("up", "down")},
}
_EXPERT = re.compile(r"moe\.experts\.(\d+)\.(up|down)")
_BIAS = "moe.router.expert_bias"
_ALONE = {
    **{f"mamba.{x}": f"mixer.{x}" for x in ("A_log", "dt_bias", "D")},
    _BIAS: "mixer.gate.e_score_correction_bias",
}
# Layers for multi-token prediction, which transformers leaves out as well.
_IGNORED = re.compile(r"^mtp\.")
_MIN_STEP = 0.001


def _of_experts(rule: Refusal) -> Refusal:
    """Return a rule for configurations that have experts."""
    return Refusal(
        f"{rule.words} with experts",
        lambda config: rule.found(config) if _MOE in _layers(config)[1] else iter(()),
    )


def _letters(config: Config) -> Iterator[str]:
    where, layers = _layers(config)
    yield from dict.fromkeys(f"{where}: {x}" for x in layers if x not in _LETTERS)


NOT_COMPUTED = refusals(
    only("mlp_hidden_act", "relu2"),
    only("mamba_hidden_act", "silu"),
    *(only(key, False) for key in ("attention_bias", "mlp_bias", "use_bias")),
    only("use_conv_bias", True),
    *(_of_experts(only(key, 1)) for key in ("n_group", "topk_group")),
    _of_experts(only("moe_latent_size", None)),
    Refusal(f"layers other than {listed(tuple(_LETTERS))}", _letters),
)


def keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`.

    Raises: ConfigError if a size is missing or is no number.
    """
    _, layers = _layers(config)
    heads = number(config, "num_attention_heads", 32)
    mlp = number(config, "intermediate_size", 21504)
    return {
        "pattern": "".join(_LETTERS.get(layer, "?") for layer in layers),
        "hidden": number(config, "hidden_size", 4096),
        "heads": heads,
        "kv_heads": number(config, "num_key_value_heads", 8, heads),
        "head_dim": number(config, "head_dim", 128),
        "mlp": mlp,
        "mamba": {
            "heads": number(config, "mamba_num_heads", 128),
            "head_dim": number(config, "mamba_head_dim", 64),
            "state": number(config, "ssm_state_size", 128),
            "groups": number(config, "n_groups", 8),
            "conv": number(config, "conv_kernel", 4),
            "chunk": number(config, "chunk_size", 128),
            # transformers clamps steps to the smallest initial step.
            "min_step": number(config, "time_step_min", _MIN_STEP),
        },
        "vocab": number(config, "vocab_size", 131072),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "norm_eps": number(config, "layer_norm_epsilon", 1e-5),
        "rope_theta": None,
        "activation": "squared_relu",
        "qk_norm": False,
        "norm_offset": False,
        "gated_attention": False,
        "moe": moe_keys(
            experts=number(config, "n_routed_experts", 8),
            top_k=number(config, "num_experts_per_tok", 2),
            width=number(config, "moe_intermediate_size", 7688),
            score="sigmoid",
            normalize=bool(config.get("norm_topk_prob", True)),
            scale=number(config, "routed_scaling_factor", 1.0),
            # In transformers 0 means the width of `mlp`, and `n_shared_experts` has no effect.
            shared=number(config, "moe_shared_expert_intermediate_size", 7688) or mlp,
            bias_update_rate=0.0,
        )
        if _MOE in layers
        else None,
    }


def _layers(config: Config) -> tuple[str, list[str]]:
    """Return the names of all layers, and the key that has them. Raises: ConfigError."""
    pattern = config.get("hybrid_override_pattern")
    for key in ("layers_block_type", "layer_types"):
        layers = config.get(key)
        if isinstance(layers, list) and layers:
            return key, [str(layer) for layer in layers]
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError("config.json does not say `layers_block_type`")
    return "hybrid_override_pattern", [_NAMES.get(letter, letter) for letter in pattern]


def place(name: str, model: HybridModel) -> Place:
    """Return the place of our tensor `name`, which is given without the module.

    Raises: KeyError for a name that a hybrid model does not have.
    """
    if name in _ENDS:
        return Place(_ENDS[name])
    _, index, inner = name.split(".", 2)
    found = _in_layer(inner, model)
    return replace(found, name=f"model.layers.{index}.{found.name}")


def _in_layer(name: str, model: HybridModel) -> Place:
    """Return the place of a tensor of a layer, by its name in the layer. Raises: KeyError."""
    layer, _, kind = name.rpartition(".")
    if name in _ALONE:
        return Place(_ALONE[name], at_least_fp32=name == _BIAS)
    if layer in _LAYERS:
        return Place(f"{_LAYERS[layer]}.{kind}")
    if expert := _EXPERT.fullmatch(layer):
        return Place(f"mixer.experts.{expert[1]}.{expert[2]}_proj.{kind}")
    sizes = model.mamba
    if sizes is None:
        raise KeyError(name)
    if layer.startswith("mamba.conv."):
        shape = (sizes.inner + 2 * sizes.shared, 1, sizes.conv) if kind == "weight" else None
        first, rows = rows_of(_convolved(sizes), layer.removeprefix("mamba.conv."))
        return Place(f"mixer.conv1d.{kind}", first, rows, shape)
    fused = {"z": sizes.inner, **_convolved(sizes), "dt": sizes.heads}
    first, rows = rows_of(fused, layer.removeprefix("mamba."))
    return Place(f"mixer.in_proj.{kind}", first, rows)


def _convolved(sizes: MambaSizes) -> dict[str, int]:
    return {"x": sizes.inner, "B": sizes.shared, "C": sizes.shared}


def is_ignored(name: str, model: HybridModel) -> bool:
    """Return whether a tensor of a file follows from others, or is left out by rule."""
    return bool(_IGNORED.match(name)) or (model.tied and name == HEAD)


def fits(model: HybridModel) -> bool:
    """Return whether our hybrid model is a Nemotron-H: its attention has no positions."""
    return model.rope_theta is None


def config_of(model: HybridModel) -> Config:
    """Return the configuration of our hybrid model, as transformers 5 writes it."""
    sizes = model.mamba or MambaSizes.model_validate({"heads": 128})
    experts: Config = {}
    if (moe := model.moe) is not None:
        experts = {
            "n_routed_experts": moe.experts,
            "num_experts_per_tok": moe.top_k,
            "moe_intermediate_size": moe.width,
            "n_shared_experts": 1,
            "moe_shared_expert_intermediate_size": moe.shared,
            "norm_topk_prob": moe.normalize,
            "routed_scaling_factor": moe.scale,
            "n_group": 1,
            "topk_group": 1,
        }
    return {
        "model_type": NEMOTRON_H,
        "layers_block_type": [_NAMES.get(letter, letter) for letter in model.pattern],
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_size,
        "intermediate_size": model.mlp_width,
        "mamba_num_heads": sizes.heads,
        "mamba_head_dim": sizes.head_dim,
        "ssm_state_size": sizes.state,
        "n_groups": sizes.groups,
        "conv_kernel": sizes.conv,
        "chunk_size": sizes.chunk,
        "time_step_min": sizes.min_step,
        "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied,
        "layer_norm_epsilon": model.norm_eps,
        **experts,
    }


HYBRID = Family(
    model_type=NEMOTRON_H,
    kind="hybrid",
    not_computed=NOT_COMPUTED,
    keys=keys,
    place=place,
    is_ignored=is_ignored,
    fits=fits,
    config=config_of,
    architecture="NemotronHForCausalLM",
)


def part(config: Config, kind: str) -> Part[HybridModel]:
    """Return the whole of a folder, under either of its two prefixes. Raises: NoSuchPart."""
    if kind != HYBRID.kind:
        raise NoSuchPart(f"model_type: {NEMOTRON_H}")
    return Part(
        family=HYBRID,
        config=config,
        prefixes=(
            ("", ""),
            ("backbone.", "model."),
            ("backbone.embeddings.", "model.embed_tokens."),
            ("model.embeddings.", "model.embed_tokens."),
        ),
    )
