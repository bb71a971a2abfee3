"""Every family is that of `transformers`, number by number, from its folder and back.

The table is `tests/support/families.py`. Texts, images and clips are those of the first step:
several in some samples, none in others.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.support.families import FAMILIES, ROWS, WRONG
from tests.support.hugging_face import save
from tests.support.older_folders import OLDER
from tests.support.whole_models import deviation, found_logits

# The largest difference of logits in fp32 by the largest logit. How processors round differs: a
# Gemma 4 with tp 2 is 1.1e-5 off on one and less than 1e-5 on another; a wrong setting, 1e-4.
ROUNDING = 2e-5


# These are read on several ranks by default, come out bit for bit, and take a step: together they
# have every kind of layer, tower and part of a whole, and run every function that reads or writes a
# folder. Each other family is compared by default on one rank in float64.
THOROUGHLY = {
    "llama", "phi3", "gemma2", "gemma4_text, small", "apertus", "lfm2", "cohere", "youtu",
    "stablelm", "exaone", "hunyuan_v1_dense", "cohere_compass_text", "granite", "cwm", "ministral",
    "olmo3", "hyperclovax",
    "mixtral", "gpt_oss", "deepseek_v3", "llama4_text", "gemma4_text, experts", "flex_olmo",
    "exaone_moe", "ernie4_5_moe", "mellum", "sarvam_moe", "hy_v3", "minimax_m2", "qwen2_moe",
    "llava of clip and llama", "llava of two layers", "ovis2_untied, seeing", "llama4, seeing",
    "gemma4_small, seeing", "video_llava, seeing", "kimi_k25, seeing", "lfm2_vl, seeing",
    "paddleocr_vl, seeing", "aya_vision, seeing", "internvl, seeing", "paligemma, seeing",
    "qwen2_vl", "qwen3_vl", "cosmos3_edge", "glm4v", "exaone4_5", "colqwen2",
    "voxtral", "emu3", "phi4_multimodal", "phi4_multimodal, hearing",
    "phi4_multimodal, seeing and hearing", "llava_onevision", "qwen2_5_omni, thinking",
    "qwen3_omni_moe, thinking", "nemotron_h", "nemotron_h with experts", "qwen3_next",
}  # fmt: skip


def always(name: str) -> bool:
    """Return whether a family is compared in more than one way by default."""
    return name in THOROUGHLY or FAMILIES[name].exact is None or not FAMILIES[name].exact_often


def test_families_that_are_compared_thoroughly_exist() -> None:
    assert FAMILIES.keys() >= THOROUGHLY


def cases(found: Iterable[tuple[Any, bool]]) -> list[Any]:
    """Return parameters, each with whether it is tested by default."""
    return [
        pytest.param(*each, marks=() if often else pytest.mark.sweep, id=", ".join(each))
        for each, often in found
    ]


@pytest.mark.parametrize(
    ("name", "layout"),
    cases(
        ((n, x), always(n) and x in each.often)
        for n, each in FAMILIES.items()
        for x in each.layouts
    ),
)
def test_logits_are_those_of_transformers(name: str, layout: str, tmp_path: Path) -> None:
    assert FAMILIES[name].deviation(layout, tmp_path) < ROUNDING


@pytest.mark.parametrize(
    "name",
    cases(((n,), each.exact_often) for n, each in FAMILIES.items() if each.exact is not None),
)
def test_logits_in_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROWS.get(name)
    right, wrong = FAMILIES[name].deviations_in_float64(tmp_path, monkeypatch, row)
    assert right < 1e-9
    assert row is None or wrong > 1e-6


@pytest.mark.parametrize(
    ("name", "optimizer", "precision"),
    cases(
        ((n, *x), always(n) and often)
        for n, each in FAMILIES.items()
        for x, often in each.steps.items()
    ),
)
def test_a_step_is_that_of_plain_torch(
    name: str, optimizer: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names of its tensors; norms, biases and layer scale do not decay."""
    FAMILIES[name].assert_step(optimizer, precision, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "name", cases(((n,), always(n)) for n, each in FAMILIES.items() if each.untouched is not None)
)
def test_an_untouched_model_comes_out_bit_for_bit(name: str, tmp_path: Path) -> None:
    """With its settings, those that we do not know among them."""
    FAMILIES[name].assert_untouched(tmp_path)


@pytest.mark.parametrize("wrong", cases(((name,), each[-1]) for name, each in WRONG.items()))
def test_the_bound_sees_a_wrong_setting(wrong: str, tmp_path: Path) -> None:
    """Of ours, or of a model of theirs with the same weights."""
    name, place, changed, _ = WRONG[wrong]
    family = FAMILIES[name]
    model, asked = family.start("one rank", tmp_path, **family.exact or {})
    if place == "theirs":
        model = family.tiny(**changed)
    else:
        module = asked.modules[place]
        keys = module.model.model_dump()
        inner = {
            k: keys[k] | v if isinstance(v, dict) and keys[k] else v for k, v in changed.items()
        }
        other = type(module.model).model_validate(keys | inner)
        module = module.model_copy(update={"model": other})
        asked = asked.model_copy(update={"modules": {**asked.modules, place: module}})
    assert deviation(found_logits(asked, tmp_path), family.wanted(model, asked)) > 1e-4


@pytest.mark.parametrize("name", cases(((name,), each[-1]) for name, each in OLDER.items()))
def test_folders_of_other_versions_are_read(name: str, tmp_path: Path) -> None:
    kind, configured, held, settings, _ = OLDER[name]
    family, folder = FAMILIES[kind], tmp_path / "model"
    model = family.tiny()
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(configured(config)))
    file = folder / "model.safetensors"
    save_file(held(load_file(file)), file, {"format": "pt"})
    asked = family.made("one rank", folder, **settings)
    assert deviation(found_logits(asked, tmp_path), family.wanted(model, asked)) < ROUNDING
