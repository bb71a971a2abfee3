"""What stands beside the weights of an export; tests/docs/test_worked_example.py uses it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.shards import tokenizer_folder

from mimo_launch.export.original_folders import Companions, companions_of
from mimo_launch.processors.tokenizer import token_id
from mimo_launch.spec.spec import Spec

VISION = {"kind": "vit", "layers": 1, "hidden": 16, "heads": 2, "patch": 4, "channels": 3}
LANGUAGE = {"kind": "decoder", "layers": 1, "hidden": 16, "heads": 2, "vocab": 400}


def beside(
    folder: Path,
    token: int,
    strategy: str = "full",
    kind: str = "llava",
    tower: str = "clip_vision_model",
) -> Companions:
    """Return what stands beside a LLaVA whose folders are below one."""
    made = {
        "version": 1,
        "name": "run",
        "modules": {
            "vision": {"model": VISION, "ranks": "0"},
            "language": {"model": LANGUAGE, "ranks": "0"},
        },
        "batch": {"global": 2, "seq": 64},
        "data": {
            "kind": "webdataset", "shards": "a.tar", "template": "chat",
            "tokenizer": str(folder / "words"), "processors": {"vision": str(folder / "tower")},
        },
    }  # fmt: skip
    config: dict[str, Any] = {
        "model_type": kind, "image_token_index": token,
        "vision_config": {"patch_size": 4, "model_type": tower},
        "vision_feature_select_strategy": strategy,
    }  # fmt: skip
    sources = dict.fromkeys(("vision", "language"))
    return companions_of(Spec.model_validate(made), ("vision", "language"), sources, config)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer_folder(tmp_path / "words")
    (tmp_path / "tower").mkdir()
    (tmp_path / "tower" / "preprocessor_config.json").write_text("{}")
    return tmp_path


def image_pad(folder: Path) -> int:
    found = token_id(folder / "words", "<|image_pad|>")
    assert found is not None
    return found


@pytest.mark.parametrize(("strategy", "more"), [("full", 0), ("default", 1)])
def test_a_llava_gets_a_processor_that_knows_its_rows(
    folder: Path, strategy: str, more: int
) -> None:
    found = beside(folder, image_pad(folder), strategy)
    assert found.notes == ()
    assert found.written == {
        "processor_config.json": {
            "processor_class": "LlavaProcessor",
            "image_token": "<|image_pad|>",
            "patch_size": 4,
            "num_additional_image_tokens": more,
            "vision_feature_select_strategy": strategy,
        }
    }
    assert found.copied["preprocessor_config.json"] == folder / "tower/preprocessor_config.json"
    assert found.copied["chat_template.jinja"] == folder / "words/chat_template.jinja"


def test_the_processor_of_a_tower_gives_its_images_only(folder: Path) -> None:
    theirs = {"processor_class": "SiglipProcessor", "image_processor": {"size": 4}}
    (folder / "tower" / "processor_config.json").write_text(json.dumps(theirs))
    found = beside(folder, image_pad(folder))
    written = found.written["processor_config.json"]
    assert (written["processor_class"], written["image_processor"]) == (
        "LlavaProcessor", {"size": 4},
    )  # fmt: skip
    assert "processor_config.json" not in found.copied


def test_the_processor_of_a_llava_is_taken_over(folder: Path) -> None:
    theirs = folder / "tower" / "processor_config.json"
    theirs.write_text('{"processor_class": "LlavaProcessor", "patch_size": 14}')
    found = beside(folder, image_pad(folder))
    assert found.copied["processor_config.json"] == theirs
    assert not found.written


def test_a_token_that_the_tokenizer_does_not_have_is_said(folder: Path) -> None:
    found = beside(folder, 399)
    [note] = found.notes
    assert note.startswith("token 399 stands for images, and the tokenizer in ")
    assert not found.written
    (folder / "words" / "tokenizer.json").write_text("[]")
    assert beside(folder, 399).notes == found.notes


def test_other_models_get_copies_only(folder: Path) -> None:
    found = beside(folder, image_pad(folder), kind="qwen2_vl")
    assert (dict(found.written), found.notes) == ({}, ())
    assert "tokenizer.json" in found.copied


def test_the_processor_of_a_pixtral_is_no_llava(folder: Path) -> None:
    theirs = folder / "tower" / "processor_config.json"
    theirs.write_text('{"processor_class": "PixtralProcessor", "patch_size": 16}')
    found = beside(folder, image_pad(folder), tower="pixtral")
    assert found.copied["processor_config.json"] == theirs
    assert not found.written
