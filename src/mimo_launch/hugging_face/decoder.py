"""Decoders of Llama, Qwen2, Qwen3 and Mistral shape.

Decides: what their configurations mean, which settings our decoder cannot compute, and the names of
their tensors.
Relies on: `config.json` as transformers 4 and 5 write it, with the defaults of its config classes;
`rotary` and `windows`.
Leaves: comparing with a spec to `checks.init_from_folder`, reading tensors to `checkpoint`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from mimo_launch.hugging_face import rotary
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.names import Names, in_layers
from mimo_launch.hugging_face.refusals import Refusals, only, refusals
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.hugging_face.windows import NO_WINDOWS, WindowKeys
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import DecoderModel, TalkerModel


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """The optional parts of a block, and the defaults of its settings.

    A default of None follows from other settings.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    kv_heads: int | None = None
    head_size: int | None = None
    windows: WindowKeys = NO_WINDOWS


_OF_QWEN = WindowKeys(asked=True, by_layer=True)
KINDS = {
    "llama": DecoderFamily(),
    "qwen2": DecoderFamily(qkv_bias=True, kv_heads=32, windows=_OF_QWEN),
    "qwen3": DecoderFamily(qk_norm=True, kv_heads=32, head_size=128, windows=_OF_QWEN),
    "mistral": DecoderFamily(kv_heads=8, windows=WindowKeys()),
}
NORM_EPS = 1e-6
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_HEADS, _WIDTH = "num_attention_heads", "hidden_size"
_SIZES = Settings(
    {
        "layers": "num_hidden_layers",
        "hidden": _WIDTH,
        "heads": _HEADS,
        "kv_heads": ("num_key_value_heads", lambda x: number(x, _HEADS)),
        "head_dim": ("head_dim", lambda x: number(x, _WIDTH) // max(1, int(number(x, _HEADS)))),
        "mlp": "intermediate_size",
        "vocab": "vocab_size",
    }
)
MLP = ("gate", "up", "down")
ENDS = {"embedding.weight": EMBEDDING, "head.weight": HEAD, "norm.weight": "model.norm.weight"}
LAYERS = "model.layers.*."
place = Names(ENDS) | in_layers(
    LAYERS,
    {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkvo"},
        **{f"attention.{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
        **{f"mlp.{x}": f"mlp.{x}_proj" for x in MLP},
    },
)
# Keys that no configuration has; the files show whether they hold `mtp`.
_NOT_OF_FOLDERS = {"kind", "vocab_multiple", "mtp"}


def not_computed(kind: DecoderFamily) -> Refusals:
    """Return the settings of a kind that our decoder does not compute."""
    return refusals(
        only("hidden_act", "silu"),
        only("attention_bias", kind.output_bias),
        only("mlp_bias", False),
        only("partial_rotary_factor", 1.0),
        kind.windows.refusal(),
        rotary.REFUSAL,
    )


def keys(kind: DecoderFamily, config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`, with other parts off. Raises: ConfigError."""
    said = {"num_key_value_heads": kind.kv_heads, "head_dim": kind.head_size, **config}
    found = {
        **_SIZES.keys(said),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": kind.qkv_bias,
        "output_bias": kind.output_bias,
        "qk_norm": kind.qk_norm,
        "norm_eps": number(config, "rms_norm_eps", NORM_EPS),
        **rotary.rope_keys(config),
        "sliding_window": kind.windows.of(config),
        "bidirectional_images": False,
    }
    fields = DecoderModel.model_fields.items()
    return found | {x: y.default for x, y in fields if x not in _NOT_OF_FOLDERS | found.keys()}


def is_ignored(name: str, model: DecoderModel) -> bool:
    """Return whether a tensor of a file follows from others, or from the settings."""
    # Old versions of transformers saved the frequencies of rotary embeddings.
    return name.endswith("rotary_emb.inv_freq") or (model.tied and name == HEAD)


def fits(kind: DecoderFamily, model: DecoderModel) -> bool:
    """Return whether our block has exactly the optional parts of this kind."""
    return (model.qkv_bias, model.qk_norm, model.mrope) == (kind.qkv_bias, kind.qk_norm, None)


def config_of(
    model_type: str, model: DecoderModel | TalkerModel, windows: WindowKeys = NO_WINDOWS
) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    return {
        "model_type": model_type,
        **_SIZES.config(model),
        "tie_word_embeddings": kind_of(model).is_tied,
        "rms_norm_eps": model.norm_eps,
        "rope_parameters": rotary.rope_of(model),
        **windows.config(model),
    }


FAMILIES = tuple(
    Family(
        model_type=name,
        kind="decoder",
        not_computed=not_computed(kind),
        keys=partial(keys, kind),
        place=place,
        is_ignored=is_ignored,
        fits=partial(fits, kind),
        config=partial(config_of, name, windows=kind.windows),
        architecture=f"{name.capitalize()}ForCausalLM",
    )
    for name, kind in KINDS.items()
)
