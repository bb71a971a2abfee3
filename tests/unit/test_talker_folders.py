"""What folders of talkers hold, and what they do not."""

import pytest

from mimo_launch.hugging_face.registry import part_of
from mimo_launch.hugging_face.tensors import Place
from mimo_launch.spec.load import model_from_data


def test_a_folder_has_one_head() -> None:
    part = part_of({"model_type": "qwen2_5_omni", "talker_config": {}}, "talker")
    model = model_from_data({"kind": "talker", **part.keys(), "codebooks": 2})
    assert part.place("heads.0.weight", model) == Place("codec_head.weight")
    with pytest.raises(KeyError):
        part.place("heads.1.weight", model)
