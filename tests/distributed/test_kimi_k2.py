"""A Kimi-K2 is the DeepSeek-V3 of `transformers` with the same weights, and keeps its own form."""

import json
from pathlib import Path

from tests.support.exports import load
from tests.support.families import FAMILIES, KIMI_SCALING, KIMI_THETA


def test_an_untouched_model_keeps_its_form(tmp_path: Path) -> None:
    """With its name and the code that it names; it is a DeepSeek-V3 but for the name."""
    written = FAMILIES["kimi_k2"].assert_untouched(tmp_path)
    source = json.loads((tmp_path / "model" / "config.json").read_text())
    del source["transformers_version"], source["head_dim"]
    source["rope_scaling"]["truncate"] = True
    assert {key: written.get(key) for key in source} == source
    other = written | {"model_type": "deepseek_v3", "auto_map": {}}
    (tmp_path / "out" / "config.json").write_text(json.dumps(other))
    same = load("AutoModelForCausalLM", tmp_path / "out").config.rope_parameters
    theirs = {"rope_type": "yarn", "rope_theta": KIMI_THETA, **KIMI_SCALING}
    assert {key: same[key] for key in theirs} == theirs
