"""Nemotron-H: hybrid models of Mamba-2, attention, MLP and mixture-of-experts layers.

`config.json` as transformers 5 and NVIDIA's folders have it.

Source: `transformers` 5.23, models/nemotron_h; arXiv:2504.03624.
"""

from collections.abc import Iterator

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import HYBRID_REST, LAYERS, experts
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, ConfigError, number
from mimo_launch.hugging_face.refusals import Refusal, listed, only, refusals
from mimo_launch.hugging_face.settings import Computed, InnerSettings, Settings
from mimo_launch.hugging_face.tensors import Dropped, Place, Tensors, fused, in_layers
from mimo_launch.spec.hybrid import ATTENTION, EXPERTS, MAMBA, MLP, HybridModel, MambaSizes

_MOE, _WIDTH = "moe", ("intermediate_size", 21504)
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
_HEADS, _SHARED = ("num_attention_heads", 32), ("moe_shared_expert_intermediate_size", 7688)


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


def _has_experts(config: Config) -> bool:
    return _MOE in _layers(config)[1]


def _of_experts(rule: Refusal) -> Refusal:
    """Return a rule for configurations that have experts."""
    return Refusal(
        f"{rule.words} with experts",
        lambda config: rule.found(config) if _has_experts(config) else iter(()),
    )


def _letters(config: Config) -> Iterator[str]:
    where, layers = _layers(config)
    yield from dict.fromkeys(f"{where}: {x}" for x in layers if x not in _LETTERS)


_SETTINGS = Settings(
    {
        "pattern": Computed(
            lambda config: "".join(_LETTERS.get(layer, "?") for layer in _layers(config)[1]),
            lambda model: {"layers_block_type": [_LAYERS.get(x, x) for x in model.pattern]},
            "`layers_block_type`, or `hybrid_override_pattern`",
        ),
        "hidden": ("hidden_size", 4096),
        "heads": _HEADS,
        # Null means as many as query heads.
        "kv_heads": ("num_key_value_heads", lambda config: number(config, *_HEADS)),
        "head_dim": ("head_dim", 128),
        "mlp": _WIDTH,
        "mamba": InnerSettings(
            Settings({
                "heads": ("mamba_num_heads", 128), "head_dim": ("mamba_head_dim", 64),
                "state": ("ssm_state_size", 128), "groups": ("n_groups", 8),
                "conv": ("conv_kernel", 4), "chunk": ("chunk_size", 128),
                # transformers clamps steps from below to the smallest initial step.
                "min_step": ("time_step_min", 0.001),
            }),
            otherwise=MambaSizes.model_validate({"heads": 128}),
        ),
        "vocab": ("vocab_size", 131072),
        "tied": ("tie_word_embeddings", False),
        "norm_eps": ("layer_norm_epsilon", 1e-5),
        "moe": experts(
            {
                "experts": ("n_routed_experts", 8),
                "top_k": ("num_experts_per_tok", 2),
                "width": ("moe_intermediate_size", 7688),
                "normalize": ("norm_topk_prob", True),
                "scale": ("routed_scaling_factor", 1.0),
                # In transformers 0 means the width of `mlp`; `n_shared_experts` has no effect.
                "shared": Computed(
                    lambda config: number(config, *_SHARED) or number(config, *_WIDTH),
                    lambda moe: {
                        _SHARED[0]: moe.shared, "n_shared_experts": 1, "n_group": 1,
                        "topk_group": 1,
                    },
                    f"`{_SHARED[0]}`; {_SHARED[1]}",
                ),
            },
            _has_experts,
            score="sigmoid",
            bias_update_rate=0.0,
        ),
    },
    rest={**HYBRID_REST, "activation": "squared_relu"},
)  # fmt: skip


def _mamba(model: HybridModel) -> MambaSizes:
    if model.mamba is None:
        raise KeyError("mamba")
    return model.mamba


def _convolved(model: HybridModel) -> list[int]:
    """Return the widths of x, B and C. Raises: KeyError."""
    sizes = _mamba(model)
    return [sizes.inner, sizes.shared, sizes.shared]


_CONVOLVED = [f"mamba.conv.{x}" for x in "xBC"]
_TENSORS = Tensors(
    {
        **decoders.ENDS,
        "norm.weight": "model.norm_f.weight",
        "layers.*.norm": f"{LAYERS}norm",
        **in_layers(
            f"{LAYERS}mixer.",
            {
                **{f"attention.{x}": f"{x}_proj" for x in "qkvo"},
                **{f"mlp.{x}": f"{x}_proj" for x in ("up", "down")},
                **{f"mamba.{x}": x for x in ("A_log", "dt_bias", "D", "norm")},
                "mamba.out": "out_proj",
                **fused(
                    "in_proj",
                    [f"mamba.{x}" for x in ("z", "x", "B", "C", "dt")],
                    lambda model: [_mamba(model).inner, *_convolved(model), _mamba(model).heads],
                ),
                **fused("conv1d", _CONVOLVED, _convolved),
                **fused(
                    "conv1d.weight",
                    [f"{x}.weight" for x in _CONVOLVED],
                    _convolved,
                    lambda model: (sum(_convolved(model)), 1, _mamba(model).conv),
                ),
                "moe.router": "gate",
                "moe.router.expert_bias": Place("gate.e_score_correction_bias", at_least_fp32=True),
                **{f"moe.shared.{x}": f"shared_experts.{x}_proj" for x in ("up", "down")},
                **{f"moe.experts.*.{x}": f"experts.*.{x}_proj" for x in ("up", "down")},
            },
        ),
    },
    # transformers leaves out the layers for multi-token prediction as well.
    (Dropped("mtp.*"), decoders.TIED),
)
NEMOTRON_H = Family(
    model_type="nemotron_h",
    kind="hybrid",
    architecture="NemotronHForCausalLM",
    published=("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",),
    settings=_SETTINGS,
    tensors=_TENSORS,
    aliases=decoders.ROUTED_ALIAS,
    prepared=lambda config: {"num_key_value_heads": 8, **config},
    refused=refusals(
        only("mlp_hidden_act", "relu2"),
        only("mamba_hidden_act", "silu"),
        *(only(key, False) for key in ("attention_bias", "mlp_bias", "use_bias")),
        only("use_conv_bias", True),
        *(_of_experts(only(key, 1)) for key in ("n_group", "topk_group")),
        _of_experts(only("moe_latent_size", None)),
        Refusal(f"layers other than {listed(tuple(_LETTERS))}", _letters),
    ),
    # Its files have either of two prefixes.
    prefixes=(
        ("", ""),
        ("backbone.", "model."),
        ("backbone.embeddings.", "model.embed_tokens."),
        ("model.embeddings.", "model.embed_tokens."),
    ),
    notes="[Hybrid models](hybrid.md#nemotron-h-folders) tells more. Attention uses no positions.",
)
