"""The names that a folder's tensors may have are those that the built modules look for."""

from typing import Any

import pytest
import torch
from tests.support.published import ENCODERS, MODELS

from mimo_launch.hugging_face.accounts import names_in_files
from mimo_launch.hugging_face.registry import parts_of
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import declared_parameters
from mimo_launch.layout.stages import Stage
from mimo_launch.models.build import build_network
from mimo_launch.spec.load import model_from_data, spec_from_data

CONFIGS: dict[str, dict[str, Any]] = {
    **{name: config for name, (config, _) in MODELS.items()},
    **{name: config for name, (_, config) in ENCODERS.items()},
}
OFTEN = {
    "Qwen3-30B-A3B", "GLM-4.5-Air", "gemma-3-4b", "Qwen2-Audio-7B", "Qwen3-VL-4B", "GLM-4.1V-9B",
    "InternVL3.5-8B", "SmolVLM2-2.2B", "whisper-large-v3", "C-RADIOv4-H", "dinov3-vit7b16",
    "dinov2-giant", "dinov2-with-registers-base", "Apertus-8B",
}  # fmt: skip
LANGUAGE = {"kind": "decoder", "layers": 1, "hidden": 64, "heads": 4, "vocab": 64}


def built(model: dict[str, Any]) -> set[str]:
    """Return the names of a module's tensors, without the module."""
    is_language = model["kind"] in ("decoder", "hybrid")
    name = "language" if is_language else "encoder"
    reads = {"reads": ["language"]} if model["kind"] == "talker" else {}
    modules = {
        "language": {"model": LANGUAGE, "ranks": 0},
        name: {"model": model, "ranks": 0, **reads},
    }
    spec = spec_from_data(
        {
            "version": 1, "name": "t", "modules": modules, "batch": {"global": 1, "seq": 64},
            "data": {"kind": "synthetic"}, "train": {"steps": 1},
        }
    )  # fmt: skip
    stage = Stage(name, 0, 0, spec.modules[name].model.layers, is_first=True, is_last=True)
    with torch.device("meta"):
        network = build_network(spec, stage, ParallelContext())
    declared = declared_parameters("", network)
    return {placed.name.removeprefix(".") for each in declared for placed in each.placed}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in CONFIGS]
)
def test_every_tensor_of_a_built_module_may_be_in_files(name: str) -> None:
    for part in parts_of(CONFIGS[name]):
        keys = {k: list(v) if isinstance(v, tuple) else v for k, v in part.keys().items()}
        data = {"kind": part.family.kind, **keys}
        model, known = model_from_data(data), names_in_files(part, model_from_data(data))
        places = [part.place(each, model) for each in built(data)]
        assert any(places)
        assert {place.name for place in places if place is not None} <= known
