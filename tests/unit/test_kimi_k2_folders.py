"""What configurations of Kimi-K2 mean, what of them is refused, and what is written."""

from typing import Any

import pytest
from tests.unit.test_published_models import MODELS

from mimo_launch.hugging_face.architectures import Architecture, Modules, alone
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.load import model_from_data

PUBLISHED = MODELS["Kimi-K2-Instruct"][0]


def written(*like: str) -> Architecture:
    """Return what is written of the published model, if its weights came from a model type."""
    model = model_from_data({"kind": "decoder", **part_of(PUBLISHED, "decoder").keys()})
    modules = Modules(models={"language": model}, tokens={}, widths={}, like=frozenset(like))
    found = alone(modules, "language")
    assert found is not None
    return found


def test_it_is_a_deepseek_v3_under_another_name() -> None:
    keys = part_of(PUBLISHED, "decoder").keys()
    assert part_of({**PUBLISHED, "model_type": "deepseek_v3"}, "decoder").keys() == keys
    assert keys["query_pre_attn_scalar"] == pytest.approx(58.3957, abs=1e-4)
    assert (keys["moe"]["experts"], keys["moe"]["groups"], keys["head_dim"]) == (384, 1, 192)


def test_its_name_and_form_are_written_where_the_weights_came_from_one() -> None:
    for like, name in (
        ((), "deepseek_v3"),
        (("deepseek_v3",), "deepseek_v3"),
        (("kimi_k2",), "kimi_k2"),
    ):
        found = written(*like)
        assert found.config["model_type"] == name
        assert found.name == "DeepseekV3ForCausalLM"
        assert found.parts["language"].keys() == part_of(PUBLISHED, "decoder").keys()
    config = written("kimi_k2").config
    assert "rope_parameters" not in config
    assert config["rope_theta"] == PUBLISHED["rope_theta"]
    assert config["rope_scaling"] == {**PUBLISHED["rope_scaling"], "truncate": True}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scoring_func": "softmax"}, "scoring_func: softmax"),
        ({"topk_method": "greedy"}, "topk_method: greedy"),
        ({"moe_layer_freq": 2}, "moe_layer_freq: 2"),
        ({"rope_interleave": False}, "rope_interleave: false"),
        ({"num_key_value_heads": 8}, "num_key_value_heads: 8"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config: "),
    ],
)
def test_what_is_not_computed_is_refused(changed: dict[str, Any], said: str) -> None:
    assert part_of(PUBLISHED, "decoder").not_computed() == ()
    [found] = part_of({**PUBLISHED, **changed}, "decoder").not_computed()
    assert found.startswith(said)
