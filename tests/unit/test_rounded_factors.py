"""In bf16, what enters the first layer has the bits of `transformers`, with its rounded factors."""

from typing import Any

import pytest
import torch
from tests.support.specs import box, spec

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.build import build_network

pytest.importorskip("transformers")

# Roots of none of these are numbers of bf16.
HIDDEN, WIDTH, LAYERS, VOCAB = 40, 6, 3, 50


def theirs() -> Any:
    """Return the text model of a Gemma 4 in bf16, with random weights."""
    from transformers.models.gemma4 import Gemma4TextConfig, Gemma4TextModel

    config = Gemma4TextConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=16, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=2, head_dim=8, num_kv_shared_layers=0,
        hidden_size_per_layer_input=WIDTH, vocab_size_per_layer_input=VOCAB, pad_token_id=0,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    torch.manual_seed(0)
    made = Gemma4TextModel(config).bfloat16()
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(1)
    return made


def ours() -> Any:
    """Return the same embeddings as a stage of language."""
    model = {
        "layers": LAYERS, "hidden": HIDDEN, "heads": 2, "head_dim": 8, "vocab": VOCAB,
        "embedding_scale": HIDDEN**0.5, "norm_eps": 1e-6,
        "per_layer_embeddings": {"width": WIDTH, "padding": 0},
    }  # fmt: skip
    made = spec({"language": box(0, model=model)})
    [stage] = build_layout(made)["language"].stages
    low = ParallelContext(dtype=torch.bfloat16, compute_dtype=torch.bfloat16)
    return build_network(made, stage, low)


def test_embeddings_of_tokens_and_of_layers_are_those_of_gemma_4() -> None:
    right, found, tokens = theirs(), ours(), torch.arange(VOCAB)
    front = found.per_layer
    for mine, other in (
        (found.embedding, right.embed_tokens),
        (front.table, right.embed_tokens_per_layer),
        (front.project, right.per_layer_model_projection),
        (front.norm, right.per_layer_projection_norm),
    ):
        # The table of tokens has rows for words that a spec adds.
        mine.weight.data[: len(other.weight)] = other.weight.detach()
    with torch.no_grad():
        x_1ND = right.embed_tokens(tokens[None])
        looked_up = right.get_per_layer_inputs(tokens[None])
        [vectors_NLP] = right.project_per_layer_inputs(x_1ND, looked_up)
        x_ND = found._embedded(tokens)
        assert x_ND.equal(x_1ND[0])
        assert torch.stack(front(tokens, x_ND), dim=1).equal(vectors_NLP)
