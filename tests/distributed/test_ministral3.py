"""The parts of a Ministral 3 over every layout: queries that grow with positions; its folders."""

from typing import Any

import pytest
from tests.support.planted_growth import grown
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION

from mimo_launch.hugging_face.architectures import Modules, alone
from mimo_launch.hugging_face.folder import ConfigError
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.load import model_from_data

LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "windows, cp 2": {"cp": 2, "model": {"sliding_window": {"size": 5, "full": [1]}}},
    "windows with their own base": {
        "model": {"sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0}},
    },
    "neighbours rotate, documents": {
        "model": {"rotary_interleaved": True, "rotary_factor": 1.0}, "data": {"max_documents": 3},
    },
    "three axes, cp 2, documents": {
        "cp": 2, "model": {"mrope": [1, 1, 1], "rope_scaling": None}, "data": {"max_documents": 3},
    },
    "capped, sinks": {"model": {"attention_softcap": 5.0, "attention_sinks": True}},
    "latent attention, tp 2": {
        "tp": 2,
        "model": {
            "kv_heads": 4, "head_dim": 10, "rotary_factor": 1.0,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
        },
    },
    "further tokens, cp 2": {"cp": 2, "model": {"mtp": {"depth": 1}}},
}  # fmt: skip
OFTEN = {"tp 2, cp 2, documents", "windows with their own base"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_of_growing_queries_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(grown(**LAYOUTS[layout]))) == []


# As Ministral-3-8B-Base-2512; what its classes have by default.
ROPE = {
    "rope_type": "yarn", "type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 16384,
}  # fmt: skip
PUBLISHED: dict[str, Any] = {
    "model_type": "ministral3", "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 262144,
    "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5, "rope_parameters": ROPE, "sliding_window": None,
    "tie_word_embeddings": False, "vocab_size": 131072,
}  # fmt: skip


def test_the_published_configuration_is_read_and_written() -> None:
    part = part_of(PUBLISHED, "decoder")
    assert part.not_computed() == ()
    keys = part.keys()
    assert keys["query_scaling"] == {"beta": 0.1, "length": 16384}
    assert keys["sliding_window"] is None
    model = model_from_data({"kind": "decoder", **keys})
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert found.name == "Ministral3ForCausalLM"
    assert found.parts["language"].keys() == keys
    # What is not written is what transformers takes.
    assert part_of({"model_type": "ministral3"}, "decoder").keys() == keys


def test_queries_may_grow_without_yarn() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.2}
    config = {**PUBLISHED, "rope_parameters": rope}
    with pytest.raises(ConfigError, match="original_max_position_embeddings"):
        part_of(config, "decoder").keys()
    rope["original_max_position_embeddings"] = 99
    part = part_of(config, "decoder")
    keys = part.keys()
    assert (keys["rope_scaling"], keys["query_scaling"]) == (None, {"beta": 0.2, "length": 99})
    written = part.family.config(model_from_data({"kind": "decoder", **keys}))
    assert written["rope_parameters"] == rope


def test_a_model_whose_two_lengths_differ_is_no_ministral3() -> None:
    keys = part_of(PUBLISHED, "decoder").keys()
    keys["query_scaling"] = {"beta": 0.1, "length": 8192}
    model = model_from_data({"kind": "decoder", **keys})
    modules = Modules(models={"language": model}, tokens={}, widths={})
    assert alone(modules, "language") is None


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_without_growth_the_folder_stays_what_it_was(beta: float) -> None:
    rope = {**ROPE, "llama_4_scaling_beta": beta}
    keys = part_of({**PUBLISHED, "rope_parameters": rope}, "decoder").keys()
    model = model_from_data({"kind": "decoder", **keys})
    modules = Modules(
        models={"language": model}, tokens={}, widths={}, like=frozenset({"ministral3"})
    )
    found = alone(modules, "language")
    assert found is not None
    assert (found.name, found.parts["language"].keys()) == ("Ministral3ForCausalLM", keys)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"attention_bias": True}, "attention_bias: true"),
        ({"hidden_act": "gelu"}, "hidden_act: gelu"),
        ({"rope_parameters": {**ROPE, "rope_type": "dynamic"}}, "rope_type: dynamic"),
        ({"layer_types": ["sliding_attention"] * 34}, "layer_types: sliding_attention"),
    ],
)
def test_what_is_not_computed_is_refused(changed: dict[str, Any], words: str) -> None:
    assert part_of({**PUBLISHED, **changed}, "decoder").not_computed() == (words,)
