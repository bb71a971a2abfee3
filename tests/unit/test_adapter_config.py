"""Factors of updates; the settings of peft that change one, or weights below it, are refused."""

from typing import Any

import pytest

from mimo_launch.hugging_face.adapter_config import AdapterConfig
from mimo_launch.spec.adapters import AdapterSpec


@pytest.mark.parametrize(
    ("given", "factor"),
    [
        ({}, 2.0),
        ({"alpha": 8.0}, 0.5),
        ({"rslora": True}, 8.0),
        ({"alpha": 8.0, "rslora": True}, 2.0),
    ],
)
def test_an_update_has_the_factor_of_its_settings(given: dict[str, Any], factor: float) -> None:
    """Without `alpha`, as with twice the rank."""
    assert AdapterSpec(rank=16, **given).scale == factor


Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({}, 1.0),
        ({"r": 4}, 2.0),
        ({"r": 4, "lora_alpha": 6}, 1.5),
        ({"r": 4, "lora_alpha": 6, "use_rslora": True}, 3.0),
        ({"r": 4, "lora_alpha": 6, "rank_pattern": {"q_proj": 2}}, 3.0),
        ({"r": 4, "lora_alpha": 6, "rank_pattern": {"k_proj": 2, "layers.2.*": 1}}, 1.5),
        ({"r": 4, "alpha_pattern": {r"layers\.1\..*": 12, "q_proj": 1}}, 3.0),
        ({"r": 4, "rank_pattern": {"q_proj": 16}, "alpha_pattern": {"q_proj": 2}}, 0.125),
    ],
)
def test_a_map_has_the_factor_that_peft_gives_it(settings: dict[str, Any], factor: float) -> None:
    """Of patterns, the first one that ends its name."""
    assert AdapterConfig(settings).scale(Q) == factor


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("layer_replication", [[0, 2], [1, 3]]),
        ("use_qalora", True),
        ("kasa_config", {"beta": 1e-4}),
    ],
)
def test_a_setting_that_computes_something_else_is_refused(key: str, value: Any) -> None:
    assert list(AdapterConfig({"peft_type": "LORA", key: value}).refusals()) == [f"{key}: {value}"]


@pytest.mark.parametrize("value", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_a_start_that_leaves_the_weights_is_read(value: Any) -> None:
    assert not list(AdapterConfig({"peft_type": "LORA", "init_lora_weights": value}).refusals())
