"""The parts of a GLM-4 over every layout: neighbours that rotate; its folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_gemma3 import deviation
from tests.support.hugging_face import made, save, tiny
from tests.support.planted_gates import gated
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION

from mimo_launch.hugging_face.architectures import Modules, alone
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.load import model_from_data

ONE_AXIS = {"mrope": None, "mrope_interleaved": False}
LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "whole heads, cp 2": {"cp": 2, "model": {"rotary_factor": 1.0, "mrope": [2, 2, 2]}},
    "one axis, tp 2": {"tp": 2, "model": {**ONE_AXIS, "post_norms": True}},
    "capped scores, cp 2": {"cp": 2, "model": {**ONE_AXIS, "attention_softcap": 50.0}},
}
OFTEN = {"capped scores, cp 2"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_of_neighbours_are_those_of_one_rank(layout: str) -> None:
    keys = LAYOUTS[layout]
    paired = {"gated_attention": False, "rotary_interleaved": True}
    asked = gated(**{**keys, "model": paired | keys.get("model", {})})
    assert failures(verdicts(asked)) == []


# As zai-org/GLM-4-9B-0414 and zai-org/glm-4-9b-chat-hf, before version 5.
GLM4: dict[str, Any] = {
    "model_type": "glm4", "attention_bias": False, "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 13696, "max_position_embeddings": 32768,
    "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
    "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 151552,
}  # fmt: skip
# As zai-org/GLM-4.6.
GLM4_MOE: dict[str, Any] = {
    "model_type": "glm4_moe", "attention_bias": True, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "partial_rotary_factor": 0.5, "intermediate_size": 12288,
    "moe_intermediate_size": 1536, "n_group": 1, "topk_group": 1, "n_routed_experts": 160,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 96,
    "num_experts_per_tok": 8, "num_hidden_layers": 92, "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05, "rope_theta": 1000000,
    "routed_scaling_factor": 2.5, "use_qk_norm": True, "vocab_size": 151552,
    "first_k_dense_replace": 3,
}  # fmt: skip
GLM = GLM4 | {"model_type": "glm", "attention_bias": True, "rms_norm_eps": 1.5625e-07}


@pytest.mark.parametrize("config", [GLM, GLM4], ids=["glm", "glm4"])
def test_a_published_configuration_is_read_and_written(config: dict[str, Any]) -> None:
    part = part_of(config, "decoder")
    assert part.not_computed() == ()
    keys = part.keys()
    assert keys["qkv_bias"] == config["attention_bias"]
    assert (keys["rotary_factor"], keys["rotary_interleaved"]) == (0.5, True)
    model = model_from_data({"kind": "decoder", **keys})
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert found.config["model_type"] == config["model_type"]
    assert found.parts["language"].keys() == keys


def test_a_published_configuration_with_experts_is_read_and_written() -> None:
    part = part_of(GLM4_MOE, "decoder")
    assert part.not_computed() == ()
    keys = part.keys()
    assert (keys["rotary_factor"], keys["rotary_interleaved"]) == (0.5, False)
    assert (keys["qk_norm"], keys["qkv_bias"], keys["moe"]["scale"]) == (True, True, 2.5)
    model = model_from_data({"kind": "decoder", **keys})
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert found.name == "Glm4MoeForCausalLM"
    assert found.parts["language"].keys() == keys


def test_what_is_not_written_is_what_transformers_takes() -> None:
    from transformers import Glm4Config

    theirs, keys = Glm4Config(), part_of({"model_type": "glm4"}, "decoder").keys()
    for ours, name in (
        ("layers", "num_hidden_layers"), ("hidden", "hidden_size"), ("head_dim", "head_dim"),
        ("heads", "num_attention_heads"), ("kv_heads", "num_key_value_heads"),
        ("mlp", "intermediate_size"), ("vocab", "vocab_size"), ("norm_eps", "rms_norm_eps"),
        ("tied", "tie_word_embeddings"), ("qkv_bias", "attention_bias"),
    ):  # fmt: skip
        assert keys[ours] == getattr(theirs, name), ours
    assert keys["rotary_factor"] == theirs.rope_parameters["partial_rotary_factor"]
    assert keys["rope_theta"] == theirs.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act: gelu"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config: "),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: dynamic"),
    ],
)
def test_what_is_not_computed_is_refused(changed: dict[str, Any], words: str) -> None:
    [found] = part_of({**GLM4, **changed}, "decoder").not_computed()
    assert found.startswith(words)


def test_a_folder_of_version_4_is_read(tmp_path: Path) -> None:
    model, folder = tiny("glm4"), tmp_path / "model"
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {key: rope[key] for key in ("rope_theta", "partial_rotary_factor")}
    (folder / "config.json").write_text(json.dumps(config))
    assert deviation(made("glm4", "one rank", folder), model, tmp_path) < 1e-5


WRONG = {"halves": {"rotary_interleaved": False}, "whole heads": {"rotary_factor": 1.0}}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_the_bound_sees_a_wrong_setting(wrong: dict[str, Any], tmp_path: Path) -> None:
    model = tiny("glm4")
    save(model, tmp_path / "model")
    asked = made("glm4", "one rank", tmp_path / "model")
    changed = model_from_data({**asked.language.model.model_dump(), **wrong})
    language = asked.language.model_copy(update={"model": changed})
    asked = asked.model_copy(update={"modules": {"language": language}})
    assert deviation(asked, model, tmp_path) > 1e-4
