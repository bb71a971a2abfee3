"""Command R and Command A: attention and MLP side by side, after LayerNorms without biases.

Source: `transformers` 5.24, models/cohere and models/cohere2.
"""

from typing import Any

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import FULL, WindowKeys, in_turn
from mimo_launch.hugging_face.families import granite
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import one_of, only, refusals
from mimo_launch.hugging_face.settings import Computed, also, defaults_of
from mimo_launch.hugging_face.tensors import Tensors
from mimo_launch.spec.layers import Nope

BIAS, _WINDOWS = "attention_bias", WindowKeys(by_layer=True)
# One norm for both layers.
TENSORS = Tensors(
    {ours: at for ours, at in decoders.TENSORS.table.items() if not ours.endswith("mlp_norm")},
    decoders.TENSORS.dropped,
)
PARTS: dict[str, Any] = {
    "qkv_bias": (BIAS, False),
    "output_bias": also(BIAS, False),
    "norm_eps": ("layer_norm_eps", 1e-5),
    "norm": "layer_without_bias",
    "parallel": True,
    **granite.factor("logit_scale", "logit_scale"),
}
SIZES: Config = {
    "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528,
    "num_hidden_layers": 40, "num_attention_heads": 64, "tie_word_embeddings": True,
}  # fmt: skip
BIASES = refusals(one_of(BIAS, (True, False), False))
COHERE = Family(
    model_type="cohere",
    kind="decoder",
    architecture="CohereForCausalLM",
    published=("CohereLabs/c4ai-command-r-v01", "CohereLabs/aya-expanse-8b"),
    settings=decoders.decoder(decoders.sizes(), rotary_interleaved=True, **PARTS),
    tensors=TENSORS,
    refused=BIASES + refusals(only("use_qk_norm", False)) + decoders.not_computed(but=(BIAS,)),
    defaults={**SIZES, "rope_theta": 5e5, "logit_scale": 0.0625},
    notes="Attention and MLP read one stream (`parallel`). Norms of heads (`use_qk_norm`, "
    "Command R+) have other weights for each head, and are refused.",
)
_EVERY = "sliding_window_pattern"


def _nope(config: Config) -> dict[str, Any] | None:
    found = tuple(i for i, each in enumerate(config["layer_types"]) if each == FULL)
    return defaults_of(Nope) | {"layers": found} if found else None


COHERE2 = Family(
    model_type="cohere2",
    kind="decoder",
    architecture="Cohere2ForCausalLM",
    published=("CohereLabs/c4ai-command-r7b-12-2024", "CohereLabs/c4ai-command-a-03-2025"),
    settings=decoders.decoder(
        decoders.sizes(),
        _WINDOWS,
        rotary_interleaved=True,
        nope=Computed(_nope, words="layers without windows"),
        **PARTS,
    ),
    tensors=TENSORS,
    refused=BIASES + decoders.not_computed(_WINDOWS, but=(BIAS,)),
    defaults={**SIZES, "logit_scale": 0.0625},
    prepared=lambda config: in_turn(config, max(1, int(number(config, _EVERY, 4)))),
    rank=1,
    notes="Layers as in Command R; every fourth has neither windows nor rotary positions.",
)
