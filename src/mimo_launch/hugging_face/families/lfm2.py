"""LFM2: short convolutions in most layers, attention in the others.

Each of their layers, a mixer and an MLP, is two layers of a hybrid model.

Source: `transformers` 5.24, models/lfm2; arXiv:2511.23404.
"""

from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import HYBRID_REST, LAYERS
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.refusals import layer_types, only, refusals
from mimo_launch.hugging_face.settings import Computed, Settings
from mimo_launch.hugging_face.tensors import InTurn, Tensors, fused, in_layers
from mimo_launch.spec.hybrid import ATTENTION, CONVOLUTION, MLP

_LETTERS = {"conv": CONVOLUTION, "full_attention": ATTENTION}
_NAMES = {letter: name for name, letter in _LETTERS.items()}
_DEPTH, _ADJUSTS, _THETA = "num_hidden_layers", "block_auto_adjust_ff_dim", 1e6


def _types(config: Config) -> list[Any]:
    """Return the name of the mixer of each layer. Raises: ConfigError."""
    found, depth = config.get("layer_types"), int(number(config, _DEPTH))
    if found is None:
        attends = config.get("full_attn_idxs")
        attends = range(depth) if attends is None else attends
        found = [_NAMES[ATTENTION if i in attends else CONVOLUTION] for i in range(depth)]
    if not isinstance(found, list) or len(found) < depth:
        raise ConfigError(f"`layer_types` is {short(found)}, not a list of {depth} names")
    return found[:depth]


def _mlp(config: Config) -> int:
    """Return the width inside an MLP. Raises: ConfigError."""
    width = int(number(config, "block_ff_dim", number(config, "intermediate_size", 12288)))
    if not config.get(_ADJUSTS, True):
        return width
    width = int(2 * width / 3)
    factor = config.get("block_ffn_dim_multiplier", 1.0)
    if factor is None:
        return width
    multiple = int(number(config, "block_multiple_of", 256))
    return -(-int(factor * width) // multiple) * multiple


def tied(config: Config) -> bool:
    """Return whether embedding and head are one; an older key overrides."""
    return bool(config.get("tie_embedding", config.get("tie_word_embeddings", True)))


def _head_dim(config: Config) -> float:
    return number(config, "hidden_size", 2560) // number(config, "num_attention_heads", 32)


def _thirds(model: Any) -> list[int]:
    return [model.hidden] * 3


LFM2 = Family(
    model_type="lfm2",
    kind="hybrid",
    architecture="Lfm2ForCausalLM",
    published=("LiquidAI/LFM2-1.2B", "LiquidAI/LFM2-2.6B"),
    settings=Settings(
        {
            "pattern": Computed(
                lambda config: "".join(_LETTERS.get(x, "?") + MLP for x in _types(config)),
                lambda model: {
                    "layer_types": [_NAMES.get(x, _NAMES[ATTENTION]) for x in model.pattern[::2]],
                    _DEPTH: -(-model.layers // 2),
                },
                "`layer_types`: `C` for `conv`, `*` for `full_attention`, each followed by `-`; "
                "or `full_attn_idxs`",
            ),
            "short_conv": ("conv_L_cache", 3),
            "hidden": ("hidden_size", 2560),
            "heads": ("num_attention_heads", 32),
            "kv_heads": ("num_key_value_heads", 8),
            "head_dim": ("head_dim", _head_dim),
            "mlp": Computed(
                _mlp,
                lambda model: {"intermediate_size": model.mlp_width, _ADJUSTS: False},
                f"`intermediate_size` or `block_ff_dim`; with `{_ADJUSTS}` two thirds of it times "
                "`block_ffn_dim_multiplier`, rounded up to `block_multiple_of`",
            ),
            "vocab": ("vocab_size", 65536),
            "norm_eps": ("norm_eps", 1e-5),
            "tied": Computed(
                tied,
                lambda model: {"tie_word_embeddings": model.tied},
                "`tie_embedding`, or `tie_word_embeddings`; true",
            ),
            "rope_theta": Computed(
                lambda config: rotary.theta_of({"rope_theta": _THETA, **config}),
                lambda model: {
                    "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta}
                },
                "`rope_parameters.rope_theta`, or `rope_theta`; 1000000",
            ),
        },
        rest={**HYBRID_REST, "activation": "silu", "qk_norm": True},
    ),
    tensors=Tensors(
        {
            **decoders.ENDS,
            "norm.weight": "model.embedding_norm.weight",
            **in_layers(
                LAYERS,
                {
                    "norm.weight": InTurn(("operator_norm.weight", "ffn_norm.weight")),
                    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkv"},
                    "attention.o": "self_attn.out_proj",
                    **{f"attention.{x}_norm": f"self_attn.{x}_layernorm" for x in "qk"},
                    "mlp.gate": "feed_forward.w1",
                    "mlp.up": "feed_forward.w3",
                    "mlp.down": "feed_forward.w2",
                    **fused(
                        "conv.in_proj.weight", [f"short_conv.{x}.weight" for x in "BCx"], _thirds
                    ),
                    **fused(
                        "conv.conv.weight",
                        ["short_conv.conv.weight"],
                        lambda model: [model.hidden],
                        lambda model: (model.hidden, 1, model.short_conv),
                    ),
                    "short_conv.out": "conv.out_proj",
                },
            ),
        },
        (decoders.TIED,),
        layers_in_one=2,
    ),
    refused=refusals(
        only("conv_bias", False),
        layer_types(tuple(_LETTERS), _types),
        only("rope_type", "default").after(
            lambda config: {
                "rope_type": rotary.type_of(rotary.plain_rope(config)["rope_parameters"], "default")
            }
        ),
    ),
    defaults={_DEPTH: 32},
    notes="Always on: `activation: silu`, `qk_norm`. `export` writes the width of the MLP without "
    f"`{_ADJUSTS}`.",
)  # fmt: skip
