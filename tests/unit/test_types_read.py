"""How many model types of transformers are read."""

import pytest
from transformers.models.auto import modeling_auto

from mimo_launch.hugging_face.registry import FAMILIES, WHOLES

READ = FAMILIES.keys() | WHOLES.keys()


@pytest.mark.parametrize(("task", "least"), [("IMAGE_TEXT_TO_TEXT", 49), ("CAUSAL_LM", 70)])
def test_at_least_so_many_types_of_transformers_are_read(task: str, least: int) -> None:
    """A type that is read stays so; raise the number with each new one."""
    types = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").keys()
    assert len(types & READ) >= least, sorted(types & READ)
