"""StableLM: a Llama with LayerNorms, in which a quarter of each head rotates.

Source: `transformers` 5.24, models/stablelm.
"""

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.refusals import only, refusals
from mimo_launch.hugging_face.rotary import FACTOR

STABLELM = Family(
    model_type="stablelm",
    kind="decoder",
    architecture="StableLmForCausalLM",
    published=("stabilityai/stablelm-2-1_6b",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=32) | {"head_dim": decoders.FILLED},
        qkv_bias=("use_qkv_bias", False),
        norm_eps=("layer_norm_eps", 1e-5),
        norm="layer",
        parallel=("use_parallel_residual", False),
        **rotary.rope(rotary.factor_as_written),
        rotary_factor=rotary.rotary_factor(0.25),
    ),
    tensors=decoders.TENSORS | {"norm.bias": "model.norm.bias"},
    refused=refusals(only("qk_layernorm", False)) + decoders.not_computed(but=(FACTOR,)),
    random=("attention_dropout", "hidden_dropout"),
    defaults={
        "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912,
        "num_hidden_layers": 32, "num_attention_heads": 32,
    },
    rank=1,
    notes="LayerNorms with biases. With `use_parallel_residual` (12 B) attention and MLP read one "
    "stream. Norms of heads (`qk_layernorm`) have other weights for each head, and are refused.",
)  # fmt: skip
