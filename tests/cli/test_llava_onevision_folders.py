"""What folders of LLaVA-OneVision say, in keys of a spec."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support.headers import NO_TENSORS

from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.spec import DecoderModel, VitModel

TOWER: dict[str, Any] = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
    "patch_size": 14, "image_size": 384, "num_hidden_layers": 26, "num_attention_heads": 16,
}  # fmt: skip
LLAVA: dict[str, Any] = {
    "model_type": "llava_onevision", "image_token_index": 151646, "vision_config": TOWER,
    "text_config": {"model_type": "qwen2"},
}  # fmt: skip
Cli = Callable[[str], tuple[int, str, str]]


def test_a_folder_that_says_little_has_the_defaults_of_its_classes() -> None:
    classes = import_module("transformers.models.llava_onevision.configuration_llava_onevision")
    written = classes.LlavaOnevisionConfig(**LLAVA).to_dict()
    for kind, made in (("vit", VitModel), ("decoder", DecoderModel)):
        part = part_of(LLAVA, kind)
        assert part.keys() == part_of(written, kind).keys()
        model = made(kind=kind, **part.keys())
        read = part.family.keys(part.family.config(model))
        assert {key: part.keys()[key] for key in read} == read
    keys = part_of(LLAVA, "vit").keys()
    assert (keys["layers"], keys["image"], keys["final_norm"]) == (26, (27, 27), False)
    tiles = keys["tiles"]
    assert (len(tiles["grids"]), tiles["grids"][7], tiles["most"]) == (36, (2, 2), 9)
    assert tiles["side"] == 384


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"image_grid_pinpoints": [[384, 400]]}, "image_grid_pinpoints: [[384, 400]]"),
        ({"image_grid_pinpoints": []}, "image_grid_pinpoints: []"),
        ({"vision_aspect_ratio": "pad"}, "vision_aspect_ratio: pad"),
        ({"vision_aspect_ratio": "anyres_max_0"}, "vision_aspect_ratio: anyres_max_0"),
        ({"vision_feature_layer": [-2, -1]}, "vision_feature_layer: [-2, -1]"),
        ({"vision_feature_select_strategy": "default"}, "vision_feature_select_strategy: default"),
        ({"multimodal_projector_bias": False}, "multimodal_projector_bias: false"),
    ],
)
def test_what_a_llava_onevision_cannot_have_is_named(settings: dict[str, Any], said: str) -> None:
    assert part_of({**LLAVA, **settings}, "vit").not_computed() == (said,)


def test_inspect_names_tiles_and_the_token_of_their_rows(tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**LLAVA, "image_grid_pinpoints": [[384, 768], [768, 384]]})
    )
    (tmp_path / "model.safetensors").write_bytes(NO_TENSORS)
    code, out, err = run_cli(f"inspect '{tmp_path}'")
    assert (code, err) == (0, "")
    assert "placeholder: 151646" in out
    assert "tiles: {grids: [[1, 2], [2, 1]], most: 9, side: 384}" in out
