"""A Kimi-K2 is the DeepSeek-V3 of `transformers` with the same weights, and keeps its own form."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.test_decoder_logits import wanted_logits
from tests.distributed.test_moe_decoders import EP2, in_float64
from tests.support.exports import (
    bits,
    exported,
    load,
    save_on_rank,
    tensors,
    trained,
    with_sections,
)
from tests.support.hugging_face import VOCAB, made, model_keys, save, tiny, tokens_of
from tests.support.whole_models import (
    OPTIMIZERS,
    deviation,
    found_logits,
    step_of_torch,
    with_optimizer,
)

from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

KIND = "deepseek_v3"
# Both ends of YaRN are the same, as in the published folders.
SCALING = {
    "factor": 4.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
THETA = 500.0
AUTO = {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}
LAYOUTS = {
    "tp2": EP2,
    "one rank": {},
    "cp2": {},
    "tp2 pp2": EP2 | {"sequence_parallel": True},
}


def folder_of(model: Any, folder: Path) -> Path:
    """Save a model in the form of the published folders."""
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    config |= {
        "model_type": "kimi_k2", "auto_map": AUTO, "rope_theta": THETA,
        "rope_scaling": {"type": "yarn", **SCALING}, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "moe_layer_freq": 1, "num_nextn_predict_layers": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def kimi(dtype: torch.dtype = torch.float32) -> Any:
    rope = {"rope_type": "yarn", **SCALING, "rope_theta": THETA}
    return tiny(KIND, dtype, rope_parameters=rope, n_group=1, topk_group=1)


def asked_of(layout: str, folder: Path, precision: str = "fp32", **more: Any) -> Spec:
    """Return a spec that says of rotary embeddings and experts what the folder says."""
    [module] = read_contents(folder).modules
    assert (module.model_type, module.not_computed) == ("kimi_k2", ())
    keys = {key: module.keys[key] for key in ("rope_scaling", "query_pre_attn_scalar")}
    moe = model_keys(KIND)["moe"] | {"groups": 1, "top_groups": 1}
    return made(KIND, layout, folder, precision, model={**keys, "moe": moe}, **more)


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x == "tp2" else pytest.mark.sweep) for x in LAYOUTS]
)
def test_logits_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    model = kimi()
    asked = asked_of(layout, folder_of(model, tmp_path / "model"), **LAYOUTS[layout])
    assert deviation(found_logits(asked, tmp_path, VOCAB), wanted_logits(model, asked)) < 1e-5


def test_logits_are_those_of_transformers_in_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kimi(torch.float64)
    asked = asked_of("one rank", folder_of(model, tmp_path / "model"), "fp64")
    found = found_logits(asked, tmp_path, VOCAB)
    in_float64(model, monkeypatch)
    assert deviation(found, wanted_logits(model, asked)) < 1e-9


@pytest.mark.sweep
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_is_that_of_plain_torch(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same texts, by the names of its tensors, in float64."""
    model = kimi(torch.float64)
    asked = asked_of("one rank", folder_of(model, tmp_path / "model"), "fp64")
    asked = with_optimizer(asked, optimizer)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp64")
    in_float64(model, monkeypatch)
    step_of_torch(model, model(input_ids=tokens_of(asked)).logits, asked, optimizer)
    save(model, tmp_path / "wanted")
    wanted, before = tensors(tmp_path / "wanted"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert not torch.equal(tensor, before[name]) or name.endswith("correction_bias")
        assert (found[name] - tensor).abs().max() < 1e-9, name


def test_an_untouched_model_comes_out_as_it_was(tmp_path: Path) -> None:
    """Bit for bit, with its name and the code that it names; a DeepSeek-V3 but for the name."""
    folder, out = folder_of(kimi(torch.bfloat16), tmp_path / "model"), tmp_path / "out"
    asked = with_sections(asked_of("tp2", folder, **EP2))
    run_ranks(save_on_rank, asked, tmp_path / "run", world_size=world_size(asked))
    found, wanted = exported(tmp_path / "run", out), tensors(folder)
    assert found.keys() == wanted.keys()
    assert all(bits(found[name]) == bits(wanted[name]) for name in wanted)
    source, written = (json.loads((x / "config.json").read_text()) for x in (folder, out))
    del source["transformers_version"], source["head_dim"]
    source["rope_scaling"]["truncate"] = True
    assert {key: written.get(key) for key in source} == source
    (out / "config.json").write_text(json.dumps(written | {"model_type": KIND, "auto_map": {}}))
    same = load("AutoModelForCausalLM", out).config.rope_parameters
    theirs = {"rope_type": "yarn", "rope_theta": THETA, **SCALING}
    assert {key: same[key] for key in theirs} == theirs
