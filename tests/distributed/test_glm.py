"""The parts of a GLM-4 over every layout: neighbours that rotate; its folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_gemma3 import deviation
from tests.support.hugging_face import made, save, tiny
from tests.support.planted_gates import gated
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION

from mimo_launch.spec.load import model_from_data

ONE_AXIS = {"mrope": None, "mrope_interleaved": False}
LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "whole heads, cp 2": {"cp": 2, "model": {"rotary_factor": 1.0, "mrope": [2, 2, 2]}},
    "one axis, tp 2": {"tp": 2, "model": {**ONE_AXIS, "post_norms": True}},
    "capped scores, cp 2": {"cp": 2, "model": {**ONE_AXIS, "attention_softcap": 50.0}},
}
OFTEN = {"capped scores, cp 2"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_of_neighbours_are_those_of_one_rank(layout: str) -> None:
    keys = LAYOUTS[layout]
    paired = {"gated_attention": False, "rotary_interleaved": True}
    asked = gated(**{**keys, "model": paired | keys.get("model", {})})
    assert failures(verdicts(asked)) == []


def test_a_folder_of_version_4_is_read(tmp_path: Path) -> None:
    model, folder = tiny("glm4"), tmp_path / "model"
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {key: rope[key] for key in ("rope_theta", "partial_rotary_factor")}
    (folder / "config.json").write_text(json.dumps(config))
    assert deviation(made("glm4", "one rank", folder), model, tmp_path) < 1e-5


WRONG = {"halves": {"rotary_interleaved": False}, "whole heads": {"rotary_factor": 1.0}}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_the_bound_sees_a_wrong_setting(wrong: dict[str, Any], tmp_path: Path) -> None:
    model = tiny("glm4")
    save(model, tmp_path / "model")
    asked = made("glm4", "one rank", tmp_path / "model")
    changed = model_from_data({**asked.language.model.model_dump(), **wrong})
    language = asked.language.model_copy(update={"model": changed})
    asked = asked.model_copy(update={"modules": {"language": language}})
    assert deviation(asked, model, tmp_path) > 1e-4
