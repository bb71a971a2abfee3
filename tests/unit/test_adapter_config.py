"""The settings of peft that change an update, or the weights below it, are refused."""

from typing import Any

import pytest

from mimo_launch.hugging_face.adapter_config import AdapterConfig


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
