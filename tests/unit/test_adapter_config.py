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
