"""Phi-3 and Phi-4: a Llama whose files stack queries, keys and values, and gate and up.

Source: `transformers` 5.24, models/phi3; arXiv:2404.14219.
"""

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import LAYERS, WindowKeys
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.rotary import FACTOR
from mimo_launch.hugging_face.tensors import QKV, fused, in_layers

_WINDOWS = WindowKeys(size=None)
# Old names of the same scaling.
_OLD = ("su", "yarn")


def _renamed(config: Config) -> Config:
    """Return a configuration with the name that rotary scaling has today."""
    rope = rotary.rope_settings(config)
    if rotary.type_of(rope) not in _OLD:
        return config
    rest = {key: each for key, each in config.items() if key != "rope_scaling"}
    return rest | {"rope_parameters": {**rope, "rope_type": rotary.LONGROPE}}


PHI3 = Family(
    model_type="phi3",
    kind="decoder",
    architecture="Phi3ForCausalLM",
    published=(
        *("microsoft/Phi-3-mini-4k-instruct", "microsoft/Phi-3.5-mini-instruct"),
        *("microsoft/phi-4", "microsoft/Phi-4-mini-instruct"),
    ),
    settings=decoders.decoder(
        decoders.sizes(),
        _WINDOWS,
        **rotary.rope(rotary.factor_as_written),
        rotary_factor=rotary.rotary_factor(1.0),
    ),
    tensors=decoders.TENSORS
    | in_layers(
        LAYERS,
        fused("self_attn.qkv_proj", QKV, decoders.qkv_rows)
        | fused("mlp.gate_up_proj", ("mlp.gate", "mlp.up"), lambda model: [model.mlp_width] * 2),
    ),
    refused=decoders.not_computed(_WINDOWS, but=(FACTOR,)),
    random=("attention_dropout", "resid_pdrop"),
    defaults={
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
    },
    prepared=_renamed,
    rank=1,
    notes="All layers have windows. Folders for long texts scale rotary positions by `longrope` "
    "(`su` and `yarn` are old names): `short_factor` is read, for sequences of up to "
    "`original_max_position_embeddings` tokens. Beyond, `transformers` takes `long_factor` if the "
    "longest sequence of a batch asks for it; such a `seq` is refused, and `export` copies "
    "`long_factor`.",
)  # fmt: skip
