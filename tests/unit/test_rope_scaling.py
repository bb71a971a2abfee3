"""Scaled rotary embeddings: frequencies by their wavelengths, and their place in `config.json`."""

import math

import pytest
import torch

from mimo_launch.hugging_face.architectures import Modules, alone
from mimo_launch.layers.attention_contexts import scaled
from mimo_launch.spec.spec import DecoderModel, RopeScaling
from mimo_launch.verify.oracle_layers import frequencies

LLAMA = RopeScaling(factor=8.0)


@pytest.mark.parametrize("length", [16, 300, 8192])
def test_frequencies_are_those_of_the_oracle(length: int) -> None:
    scaling = LLAMA.model_copy(update={"original_max_position_embeddings": length})
    plain = torch.tensor(frequencies(128, 500000.0), dtype=torch.float64)
    wanted = torch.tensor(frequencies(128, 500000.0, scaling), dtype=torch.float64)
    assert not torch.equal(plain, wanted)
    torch.testing.assert_close(scaled(plain, scaling), wanted, rtol=1e-13, atol=0)


def test_short_wavelengths_stay_and_long_ones_are_stretched() -> None:
    length = LLAMA.original_max_position_embeddings
    short, long = (2 * math.pi / wave for wave in (length / 4.1, length / 0.9))
    found = scaled(torch.tensor([short, long], dtype=torch.float64), LLAMA)
    assert found.tolist() == pytest.approx([short, long / 8])


def test_an_export_says_what_it_would_read() -> None:
    model = DecoderModel(
        kind="decoder", layers=2, hidden=64, heads=4, vocab=100, rope_scaling=LLAMA
    )
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert found.name == "LlamaForCausalLM"
    assert found.parts["language"].keys()["rope_scaling"] == LLAMA.model_dump()
