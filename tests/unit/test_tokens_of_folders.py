"""The placeholder tokens of a folder are found wherever `transformers` keeps them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.hugging_face.registry import WHOLES

KEYS = {
    "vision": ("image_token_id", "image_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}
# Its default configuration lacks what its own model needs.
INCOMPLETE = {"qwen3_omni_moe"}
TYPES = sorted(WHOLES.keys() & set(CONFIG_MAPPING.keys()) - INCOMPLETE)


def tokens_of(config: Any, name: str) -> Iterator[int]:
    """Yield the tokens that a configuration of `transformers` has for a tower."""
    for section in ("", "thinker_config", "vlm_config", f"{name}_config"):
        part = getattr(config, section, None) if section else config
        for key in KEYS[name]:
            if isinstance(token := getattr(part, key, None), int):
                yield token


def placeholders(folder: Path, config: dict[str, Any]) -> dict[str, int | None]:
    (folder / "config.json").write_text(json.dumps(config, default=str))
    modules = read_contents(folder).modules
    return {each.name: each.placeholder for each in modules if each.name in KEYS}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", TYPES)
def test_a_tower_has_the_token_of_its_configuration(model_type: str, tmp_path: Path) -> None:
    """By the defaults of the class, which the file says in full."""
    config = CONFIG_MAPPING[model_type]()
    for name, token in placeholders(tmp_path, config.to_dict()).items():
        assert token == next(tokens_of(config, name), None), name


def test_the_types_with_tokens_are_most() -> None:
    """Else the test above compares nothing."""
    found = [any(True for _ in tokens_of(CONFIG_MAPPING[each](), "vision")) for each in TYPES]
    assert sum(found) >= 35


def test_towers_of_a_phi4_keep_their_tokens(tmp_path: Path) -> None:
    """Said by the towers, or by default."""
    bare = {"model_type": "phi4_multimodal"}
    assert placeholders(tmp_path, bare) == {"vision": 200010, "audio": 200011}
    said = {"vision_config": {"image_token_id": 7}, "audio_config": {"audio_token_id": 9}}
    assert placeholders(tmp_path, bare | said) == {"vision": 7, "audio": 9}
