"""Nemotron-H: hybrid models of Mamba-2, attention, MLP and mixture-of-experts layers.

Decides: what its configuration means, and which settings our hybrid model cannot compute.
Relies on: `config.json` as transformers 5 and NVIDIA's folders have it, with the defaults of its
config class; `nemotron_h_tensors` for names.
Leaves: comparing with a spec to `checks.init_from_folder`.

Source: `transformers` 5.23, models/nemotron_h; arXiv:2504.03624.
"""

from collections.abc import Iterator
from typing import Any

from mimo_launch.hugging_face.family import Alone, Family, moe_keys
from mimo_launch.hugging_face.folder import Config, ConfigError, number
from mimo_launch.hugging_face.nemotron_h_tensors import NAMES, is_ignored
from mimo_launch.hugging_face.refusals import Refusal, listed, only, refusals
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.spec.hybrid import ATTENTION, EXPERTS, MAMBA, MLP, HybridModel, MambaSizes

NEMOTRON_H, _MOE = "nemotron_h", "moe"
# Letters by the names of layers, including names from older versions.
_LETTERS = {
    "linear_attention": MAMBA,
    "mamba": MAMBA,
    "full_attention": ATTENTION,
    "attention": ATTENTION,
    "mlp": MLP,
    _MOE: EXPERTS,
}
_LAYERS = {MAMBA: "linear_attention", ATTENTION: "full_attention", MLP: "mlp", EXPERTS: _MOE}
_SIZES = Settings({
    "hidden": ("hidden_size", 4096), "heads": ("num_attention_heads", 32),
    # Null means as many as query heads.
    "kv_heads": ("num_key_value_heads", lambda config: number(config, "num_attention_heads", 32)),
    "head_dim": ("head_dim", 128), "mlp": ("intermediate_size", 21504),
})  # fmt: skip
_MAMBA = Settings({
    "heads": ("mamba_num_heads", 128), "head_dim": ("mamba_head_dim", 64),
    "state": ("ssm_state_size", 128), "groups": ("n_groups", 8), "conv": ("conv_kernel", 4),
    "chunk": ("chunk_size", 128),
    # transformers clamps steps from below to the smallest initial step.
    "min_step": ("time_step_min", 0.001),
})  # fmt: skip
_REST = Settings({
    "vocab": ("vocab_size", 131072), "tied": ("tie_word_embeddings", False),
    "norm_eps": ("layer_norm_epsilon", 1e-5),
})  # fmt: skip
_EXPERTS = Settings({
    "experts": ("n_routed_experts", 8), "top_k": ("num_experts_per_tok", 2),
    "width": ("moe_intermediate_size", 7688), "normalize": ("norm_topk_prob", True),
    "scale": ("routed_scaling_factor", 1.0),
    "shared": ("moe_shared_expert_intermediate_size", 7688),
})  # fmt: skip
# The parts of our hybrid model that are always the same.
_PARTS: dict[str, Any] = {
    "rope_theta": None, "activation": "squared_relu", "qk_norm": False, "norm_offset": False,
    "gated_attention": False,
}  # fmt: skip


def _of_experts(rule: Refusal) -> Refusal:
    """Return a rule for configurations that have experts."""
    return Refusal(
        f"{rule.words} with experts",
        lambda config: rule.found(config) if _MOE in _layers(config)[1] else iter(()),
    )


def _letters(config: Config) -> Iterator[str]:
    where, layers = _layers(config)
    yield from dict.fromkeys(f"{where}: {x}" for x in layers if x not in _LETTERS)


def _keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    _, layers = _layers(config)
    sizes, moe = _SIZES.keys({"num_key_value_heads": 8, **config}), None
    if _MOE in layers:
        moe = moe_keys(**_EXPERTS.keys(config), score="sigmoid", bias_update_rate=0.0)
        # In transformers 0 means the width of `mlp`, and `n_shared_experts` has no effect.
        moe["shared"] = moe["shared"] or sizes["mlp"]
    return {
        "pattern": "".join(_LETTERS.get(layer, "?") for layer in layers),
        **sizes,
        "mamba": _MAMBA.keys(config),
        **_REST.keys(config),
        **_PARTS,
        "moe": moe,
    }


def _layers(config: Config) -> tuple[str, list[str]]:
    """Return the key that holds the layers, and the names of all layers. Raises: ConfigError."""
    pattern = config.get("hybrid_override_pattern")
    for key in ("layers_block_type", "layer_types"):
        layers = config.get(key)
        if isinstance(layers, list) and layers:
            return key, [str(layer) for layer in layers]
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError("config.json does not say `layers_block_type`")
    return "hybrid_override_pattern", [_LAYERS.get(letter, letter) for letter in pattern]


def _config(model: HybridModel) -> Config:
    """Return the configuration of our hybrid model, as transformers 5 writes it."""
    experts: Config = {}
    if (moe := model.moe) is not None:
        experts = {"n_shared_experts": 1, **_EXPERTS.config(moe), "n_group": 1, "topk_group": 1}
    return {
        "model_type": NEMOTRON_H,
        "layers_block_type": [_LAYERS.get(letter, letter) for letter in model.pattern],
        **_SIZES.config(model),
        **_MAMBA.config(model.mamba or MambaSizes.model_validate({"heads": 128})),
        **_REST.config(model),
        **experts,
    }


HYBRID = Family(
    model_type=NEMOTRON_H,
    kind="hybrid",
    not_computed=refusals(
        only("mlp_hidden_act", "relu2"),
        only("mamba_hidden_act", "silu"),
        *(only(key, False) for key in ("attention_bias", "mlp_bias", "use_bias")),
        only("use_conv_bias", True),
        *(_of_experts(only(key, 1)) for key in ("n_group", "topk_group")),
        _of_experts(only("moe_latent_size", None)),
        Refusal(f"layers other than {listed(tuple(_LETTERS))}", _letters),
    ),
    keys=_keys,
    place=NAMES,
    is_ignored=is_ignored,
    # Its attention uses no positions.
    fits=lambda model: model.rope_theta is None,
    config=_config,
    architecture="NemotronHForCausalLM",
)
# Its files have either of two prefixes.
FOLDER = Alone(
    HYBRID,
    (
        ("", ""),
        ("backbone.", "model."),
        ("backbone.embeddings.", "model.embed_tokens."),
        ("model.embeddings.", "model.embed_tokens."),
    ),
)
