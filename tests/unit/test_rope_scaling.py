"""Scaled rotary embeddings: frequencies by their wavelengths, and their place in `config.json`."""

import math
import warnings
from typing import Any

import pytest
import torch

from mimo_launch.hugging_face.architectures import Modules, alone
from mimo_launch.hugging_face.folder import ConfigError
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.rotary_angles import scaled
from mimo_launch.layers.sequence_contexts import query_factors
from mimo_launch.spec.layers import QueryScaling
from mimo_launch.spec.load import model_from_data
from mimo_launch.spec.spec import DecoderModel, RopeScaling
from mimo_launch.verify.oracle_layers import attention_factor, frequencies

LLAMA = RopeScaling(factor=8.0)
GPT_OSS = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
DEEPSEEK = {
    "rope_type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.7,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
}  # fmt: skip
YARNS: dict[str, dict[str, Any]] = {
    "of GPT-OSS": GPT_OSS,
    "of DeepSeek-V3": DEEPSEEK,
    "of Qwen3": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
    },
    "with a factor of attention": {**GPT_OSS, "attention_factor": 1.7},
    "between one pair": {**DEEPSEEK, "beta_fast": 1.001, "truncate": False},
    "of Kimi-K2": {**DEEPSEEK, "factor": 32.0, "beta_fast": 1.0, "mscale": 1.0},
    "from one pair on": {**DEEPSEEK, "beta_fast": 1.0, "truncate": False},
}  # fmt: skip


@pytest.mark.parametrize("name", YARNS)
@pytest.mark.parametrize(("theta", "size"), [(150000.0, 64), (10000.0, 8)])
def test_yarn_is_that_of_transformers(name: str, theta: float, size: int) -> None:
    """And that of the oracle, in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    config = LlamaConfig(head_dim=size, rope_parameters={**YARNS[name], "rope_theta": theta})
    wanted, stretch = ROPE_INIT_FUNCTIONS["yarn"](config, None)
    scaling = RopeScaling(**YARNS[name])
    assert scaling.stretch == pytest.approx(stretch, rel=1e-12)
    assert attention_factor(scaling) == pytest.approx(stretch, rel=1e-12)
    plain = torch.tensor(frequencies(size, theta), dtype=torch.float64)
    found = scaled(plain, scaling, theta)
    assert not torch.equal(plain, found)
    torch.testing.assert_close(found, wanted.double(), rtol=1e-5, atol=0)
    ours = torch.tensor(frequencies(size, theta, scaling), dtype=torch.float64)
    torch.testing.assert_close(found, ours, rtol=1e-12, atol=0)


def test_longrope_without_a_factor_needs_the_longest_length() -> None:
    """The default of a class would be the length, which differs from class to class."""
    rope = {
        "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    sizes = {
        "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 4,
    }  # fmt: skip
    part = part_of({"model_type": "llama", **sizes, "rope_parameters": rope}, "decoder")
    with pytest.raises(ConfigError, match="does not say `max_position_embeddings`"):
        part.keys()
    part = part_of({**part.config, "rope_parameters": {**rope, "factor": 8.0}}, "decoder")
    assert part.keys()["rope_scaling"]["factor"] == 8.0


@pytest.mark.parametrize(
    "more",
    [
        {}, {"rope_type": "su", "original_max_position_embeddings": 4096}, {"factor": 8.0},
        {"factor": 0.5},
        {"factor": 8.0, "attention_factor": 1.3},
    ],
    ids=["of lengths", "by an old name", "of a factor", "of a factor below 1", "of attention"],
)  # fmt: skip
def test_longrope_of_short_texts_is_that_of_transformers(more: dict[str, Any]) -> None:
    """And a folder says the same both ways."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import Phi3Config
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    config = {
        "model_type": "phi3", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "pad_token_id": None,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.1, 1.3, 1.7, 2.9, 4.0], "long_factor": [9.0] * 6, **more,
        },
    }  # fmt: skip
    wanted, stretch = ROPE_INIT_FUNCTIONS["longrope"](Phi3Config(**config), None)
    part = part_of(config, "decoder")
    assert part.not_computed() == ()
    assert part.keys()["rope_scaling"]["original_max_position_embeddings"] == 4096
    model = DecoderModel(kind="decoder", **part.keys())
    scaling = model.rope_scaling
    assert scaling is not None
    assert scaling.stretch == pytest.approx(stretch, rel=1e-12)
    assert attention_factor(scaling) == pytest.approx(stretch, rel=1e-12)
    ours = torch.tensor(frequencies(model.rotary_size, 10000.0, scaling), dtype=torch.float64)
    torch.testing.assert_close(ours, wanted.double(), rtol=1e-6, atol=0)
    plain = torch.tensor(frequencies(model.rotary_size, 10000.0), dtype=torch.float64)
    torch.testing.assert_close(scaled(plain, scaling, 10000.0), ours, rtol=1e-12, atol=0)
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert found.name == "Phi3ForCausalLM"
    assert found.parts["language"].keys()["rope_scaling"] == scaling.model_dump()
    again, grown = ROPE_INIT_FUNCTIONS["longrope"](Phi3Config(**found.config), None)
    assert torch.equal(again, wanted)
    assert grown == pytest.approx(stretch, rel=1e-12)


@pytest.mark.parametrize("name", YARNS)
def test_a_folder_with_yarn_says_the_same_both_ways(name: str) -> None:
    config = {
        "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100,
        "num_attention_heads": 4, "intermediate_size": 96,
        "rope_parameters": {**YARNS[name], "rope_theta": 1e6},
    }  # fmt: skip
    part = part_of(config, "decoder")
    assert part.not_computed() == ()
    keys = part.keys()
    assert keys["rope_scaling"] == RopeScaling(**YARNS[name]).model_dump()
    model = DecoderModel(kind="decoder", **keys)
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert {**found.config["rope_parameters"], "rope_theta": 1e6} == {
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "rope_theta": 1e6, **YARNS[name],
    }  # fmt: skip


@pytest.mark.parametrize("length", [16, 300, 8192])
def test_frequencies_are_those_of_the_oracle(length: int) -> None:
    scaling = LLAMA.model_copy(update={"original_max_position_embeddings": length})
    plain = torch.tensor(frequencies(128, 500000.0), dtype=torch.float64)
    wanted = torch.tensor(frequencies(128, 500000.0, scaling), dtype=torch.float64)
    assert not torch.equal(plain, wanted)
    torch.testing.assert_close(scaled(plain, scaling, 500000.0), wanted, rtol=1e-13, atol=0)


def test_short_wavelengths_stay_and_long_ones_are_stretched() -> None:
    length = LLAMA.original_max_position_embeddings
    short, long = (2 * math.pi / wave for wave in (length / 4.1, length / 0.9))
    found = scaled(torch.tensor([short, long], dtype=torch.float64), LLAMA, 500000.0)
    assert found.tolist() == pytest.approx([short, long / 8])


def test_an_export_says_what_it_would_read() -> None:
    model = DecoderModel(
        kind="decoder", layers=2, hidden=64, heads=4, vocab=100, rope_scaling=LLAMA
    )
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert found.name == "LlamaForCausalLM"
    assert found.parts["language"].keys()["rope_scaling"] == LLAMA.model_dump()


@pytest.mark.parametrize(("first", "last"), [(0, None), (1, 1 + 0.5 * math.log(2))])
def test_the_last_token_of_one_length_grows_if_positions_begin_at_1(
    first: Any, last: float | None
) -> None:
    scaling = QueryScaling(beta=0.5, length=8, first_position=first)
    found = query_factors(scaling, None, torch.arange(8), 8, torch.float64)
    assert (found is None) == (last is None)
    assert found is None or found.tolist() == pytest.approx([1.0] * 7 + [last])


def test_a_depth_of_further_tokens_rotates_as_the_last_layer_does() -> None:
    model = model_from_data({
        "kind": "decoder", "layers": 2, "hidden": 32, "heads": 4, "vocab": 9, "mtp": {"depth": 1},
        "nope": {"layers": [1]},
    })  # fmt: skip
    kind = kind_of(model)
    assert [kind.sight(number).rotary is None for number in range(3)] == [False, True, True]
    assert [kind.layer_name(number) for number in range(3)] == [
        "block", "NoPE block", "mtp NoPE block",
    ]  # fmt: skip
