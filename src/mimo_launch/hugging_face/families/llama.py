"""Llama: the decoder that all others are compared with.

Source: `transformers` 5.23, models/llama.
"""

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.family import Family

LLAMA = Family(
    model_type="llama",
    kind="decoder",
    architecture="LlamaForCausalLM",
    published=("meta-llama/Llama-3.1-8B",),
    settings=decoders.decoder(decoders.sizes()),
    tensors=decoders.TENSORS,
    refused=decoders.not_computed(),
)
