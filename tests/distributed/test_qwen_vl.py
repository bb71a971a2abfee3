"""A vision transformer and a decoder of ours are a Qwen-VL of `transformers`, number by number.

Both start from one folder; samples have several images of different sizes, or none.
"""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.exports import exported, tensors, trained
from tests.support.hugging_face import save
from tests.support.qwen_vl import (
    ALL_KINDS,
    KINDS,
    LAYOUTS,
    VOCAB,
    inputs_of,
    made,
    tiny,
    wanted_logits,
    widen_all,
)
from tests.support.whole_models import (
    OPTIMIZERS,
    deviation,
    found_logits,
    step_of_torch,
    with_optimizer,
)
from torch import Tensor

from mimo_launch.spec.spec import Windows

OFTEN = {
    "qwen2_vl": LAYOUTS.keys() - {"tp4", "unequal, apart"},
    "qwen2_5_vl": {"one rank", "cp2, apart"},
    "qwen3_vl": {"one rank", "pp2, apart"},
    "qwen3_vl_moe": {"tp2"},
    "glm4v": {"one rank", "unequal, apart"},
    "glm4v_moe": {"tp2"},
    "glm46v": set[str](),
    "qwen3_5": {"one rank", "cp2, apart"},
    "qwen3_5_moe": {"tp2"},
}


def predict_further_tokens(file: Path) -> None:
    """Add the tensors that published folders of Qwen3.5 have, and transformers leaves out."""
    names = ("mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight")
    save_file(load_file(file) | {name: torch.ones(2, 2) for name in names}, file, {"format": "pt"})


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, each, marks=() if each in OFTEN[kind] else pytest.mark.sweep)
        for kind in ALL_KINDS
        for each in LAYOUTS
    ],
)
def test_logits_are_those_of_transformers(kind: str, layout: str, tmp_path: Path) -> None:
    model = tiny(kind=kind)
    save(model, tmp_path / "model")
    if kind.startswith("qwen3_5"):
        predict_further_tokens(tmp_path / "model" / "model.safetensors")
    asked = made(layout, tmp_path / "model", kind=kind)
    assert deviation(found_logits(asked, tmp_path, VOCAB), wanted_logits(model, asked)) < 1e-5


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ["one rank", "tp2"])
def test_experts_of_older_versions_are_transposed(layout: str, tmp_path: Path) -> None:
    model, file = tiny(kind="qwen3_vl_moe"), tmp_path / "model" / "model.safetensors"
    save(model, tmp_path / "model")
    held = load_file(file)
    turned = {name: each.mT.contiguous() for name, each in held.items() if "mlp.experts." in name}
    assert turned
    save_file(held | turned, file, {"format": "pt"})
    asked = made(layout, tmp_path / "model", kind="qwen3_vl_moe")
    assert deviation(found_logits(asked, tmp_path, VOCAB), wanted_logits(model, asked)) < 1e-5


def in_float64(model: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Widen what transformers computes in fp32, experts and their routers as well."""
    widen_all(model)
    if not kind.endswith("moe"):
        return
    # The others have no kernel for float64, and routers say fp32 in three ways.
    model.set_experts_implementation("eager")
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.Tensor, "type", lambda x, dtype: x.double())
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim))


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in which the experts of a layer stand in two, as in memory."""
    found, experts = {}, re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := experts.fullmatch(name):
            parts.setdefault(match[1], {})[f"{match[2]}.{match[3]}"] = tensor
        else:
            found[name] = tensor
    for name, each in parts.items():
        numbers = range(len(each) // 3)
        found[f"{name}.down_proj"] = torch.stack([each[f"{i}.down"] for i in numbers])
        both = [torch.cat([each[f"{i}.gate"], each[f"{i}.up"]]) for i in numbers]
        found[f"{name}.gate_up_proj"] = torch.stack(both)
    return found


@pytest.mark.sweep
def test_experts_in_one_tensor_are_read(tmp_path: Path) -> None:
    kind, folder = "qwen3_5_moe", tmp_path / "model"
    model = tiny(kind=kind)
    save(model, folder)
    save_file(stacked(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    asked = made("one rank", folder, kind=kind)
    assert deviation(found_logits(asked, tmp_path, VOCAB), wanted_logits(model, asked)) < 1e-5


def keep_their_turns(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo after the test what `widen_all` does to a module of transformers."""
    # The parts of a GLM-4.6V are those of a GLM-4.1V.
    kind = "glm4v" if kind == "glm46v" else kind
    theirs: Any = import_module(f"transformers.models.{kind}.modeling_{kind}")
    for name in ("apply_rotary_pos_emb_vision", "get_vision_interpolation_indices_and_weights"):
        monkeypatch.setattr(theirs, name, getattr(theirs, name, None), raising=False)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers_in_float64(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_their_turns(kind, monkeypatch)
    model = tiny(torch.float64, kind=kind)
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model", "fp64", kind=kind)
    found = found_logits(asked, tmp_path, VOCAB)
    in_float64(model, kind, monkeypatch)
    assert deviation(found, wanted_logits(model, asked)) < 1e-9


STEPS_OFTEN = {("qwen2_5_vl", "sgd"), ("qwen3_vl", "adamw"), ("qwen3_5", "sgd")}


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        pytest.param(kind, each, marks=() if (kind, each) in STEPS_OFTEN else pytest.mark.sweep)
        for kind in ALL_KINDS
        for each in OPTIMIZERS
        # A first step of AdamW is the sign of a gradient, which rounding may change.
        if kind in KINDS or each == "sgd"
    ],
)
def test_a_step_is_that_of_plain_torch(
    kind: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same texts and images, by the names of its tensors; norms and biases do not decay."""
    precision, bound = ("fp64", 1e-9) if kind in KINDS else ("fp32", 1e-6)
    keep_their_turns(kind, monkeypatch)
    model = tiny(torch.float64 if precision == "fp64" else torch.float32, kind=kind)
    save(model, tmp_path / "model")
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    asked = made("one rank", tmp_path / "model", precision, kind=kind)
    asked = with_optimizer(asked, optimizer)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype=precision)

    if precision == "fp64":
        in_float64(model, kind, monkeypatch)
    step_of_torch(model, model(**inputs_of(model, asked)).logits, asked, optimizer)
    save(model, tmp_path / "wanted")
    wanted = tensors(tmp_path / "wanted")
    assert found.keys() == wanted.keys()
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    for name, tensor in wanted.items():
        assert (found[name] - tensor).abs().max() < bound, name


WRONG: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mrope": ("qwen2_vl", "language", {"mrope": (2, 1, 1)}),
    "positions": ("qwen2_vl", "vision", {"positions": "sincos"}),
    "activation": ("qwen2_vl", "vision", {"activation": "gelu"}),
    "no windows": ("qwen2_5_vl", "vision", {"windows": None}),
    "other layers": ("qwen2_5_vl", "vision", {"windows": Windows(side=2, full=(0,))}),
    "other windows": ("qwen2_5_vl", "vision", {"windows": Windows(side=1, full=(1,))}),
    "interpolation": ("qwen3_vl", "vision", {"interpolation": "bicubic"}),
    "other rows": ("qwen3_vl", "vision", {"deepstack": (0, 3)}),
    "axes in turn": ("qwen3_vl", "language", {"mrope_interleaved": False}),
    "pairs of halves": ("glm4v", "language", {"rotary_interleaved": False}),
    "table between corners": ("glm4v", "vision", {"interpolation": "bilinear"}),
    "activation of the merger": ("glm4v", "vision", {"projector_activation": "gelu_tanh"}),
    "whole heads": ("qwen3_5", "language", {"rotary_factor": 1.0, "mrope": (2, 2, 2)}),
}
WRONG_OFTEN = {"mrope", "other layers", "interpolation"}


@pytest.mark.parametrize(
    "wrong", [pytest.param(x, marks=() if x in WRONG_OFTEN else pytest.mark.sweep) for x in WRONG]
)
def test_the_bound_sees_a_wrong_setting(wrong: str, tmp_path: Path) -> None:
    kind, name, changed = WRONG[wrong]
    model = tiny(kind=kind)
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model", kind=kind)
    module = asked.modules[name]
    other = module.model_copy(update={"model": module.model.model_copy(update=changed)})
    asked = asked.model_copy(update={"modules": {**asked.modules, name: other}})
    assert deviation(found_logits(asked, tmp_path, VOCAB), wanted_logits(model, asked)) > 1e-4


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as versions before 4.52 wrote it."""
    vision, text = config.pop("vision_config"), config.pop("text_config")
    rope = text.pop("rope_parameters")
    if config["model_type"] == "qwen2_vl":
        vision["in_chans"] = vision.pop("in_channels")
    for key in ("model_type", "rope_parameters"):
        del vision[key]
    theirs = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    return {
        **text, **config, "vision_config": vision, "rope_theta": rope["rope_theta"],
        "rope_scaling": theirs,
    }  # fmt: skip


def nested(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as versions from 4.52 to 5 wrote it."""
    text, tied = config["text_config"], config.pop("tie_word_embeddings")
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {**rope, "type": "default"}}
    config["vision_config"]["model_type"] = config["model_type"]
    del config["vision_config"]["rope_parameters"]
    return {**config, "text_config": {**text, "tie_word_embeddings": tied}}


def renamed(name: str) -> str:
    """Return what versions from 4.52 to 5 called a tensor."""
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1)


@pytest.mark.parametrize(
    ("kind", "configured", "named"),
    [("qwen2_vl", flat, str), ("qwen2_vl", nested, renamed), ("qwen2_5_vl", flat, str)],
)
def test_folders_of_older_versions_are_read(
    kind: str, configured: Any, named: Any, tmp_path: Path
) -> None:
    model = tiny(kind=kind, tied=True)
    folder = tmp_path / "model"
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(configured(config)))
    tensors = load_file(folder / "model.safetensors")
    save_file({named(name): each for name, each in tensors.items()}, folder / "model.safetensors")
    asked = made("one rank", folder, kind=kind, language={"tied": True})
    assert deviation(found_logits(asked, tmp_path, VOCAB), wanted_logits(model, asked)) < 1e-5
