"""Which layers a calibration times."""

from typing import Any

import pytest
from tests.support.specs import behind_vision

from mimo_launch.bench import measure_device


@pytest.mark.parametrize(
    ("model", "precision", "can"),
    [
        ({"head_dim": 64}, "bf16", True),
        ({"head_dim": 64}, "fp32", False),
        ({"head_dim": 4}, "bf16", False),
        ({"head_dim": 64, "attention_softcap": 30.0}, "bf16", False),
    ],
)
def test_times_a_block_of_transformer_engine_where_a_spec_may_name_it(
    monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], precision: str, can: bool
) -> None:
    """Its package has no attention for heads of four numbers, and raises an error."""
    monkeypatch.setattr(measure_device, "is_installed", lambda name: True)
    made = behind_vision(model, {"train": {"precision": precision}})
    assert measure_device._engine_can(made) == can
    monkeypatch.setattr(measure_device, "is_installed", lambda name: False)
    assert not measure_device._engine_can(made)
