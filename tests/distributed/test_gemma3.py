"""A decoder of ours is a Gemma of `transformers`: a step, folders of all versions, windows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.exports import exported, tensors, trained
from tests.support.hugging_face import (
    VOCAB,
    joined,
    logits_on_rank,
    made,
    save,
    tiny,
    tokens_of,
    widen,
    widen_softmax,
)
from tests.support.planted_images import seen_whole
from tests.support.planted_sliding import sliding
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION
from tests.support.whole_models import step_of_torch, with_optimizer
from torch import Tensor

from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.spec.spec import SlidingWindow, Spec

KIND = "gemma3_text"
KINDS = ("gemma2", KIND, "glm4")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.sweep)])
def test_a_step_is_that_of_plain_torch(
    kind: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same texts, by the names of its tensors; norms do not decay."""
    model = tiny(kind, torch.float64)
    save(model, tmp_path / "model")
    asked = with_optimizer(made(kind, "one rank", tmp_path / "model", "fp64"), optimizer)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp64")

    widen(model)
    widen_softmax(monkeypatch)
    step_of_torch(model, model(input_ids=tokens_of(asked)).logits, asked, optimizer)
    save(model, tmp_path / "wanted")
    wanted, before = tensors(tmp_path / "wanted"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert not torch.equal(tensor, before[name])
        assert (found[name] - tensor).abs().max() < 1e-9, name


def of_version_4(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as versions before 5 wrote it."""
    both = config.pop("rope_parameters")
    full = both["full_attention"]
    theta = {"rope_theta": full.pop("rope_theta"), "rope_scaling": full}
    del config["layer_types"]
    local = {"rope_local_base_freq": both["sliding_attention"]["rope_theta"]}
    return {**config, **theta, **local, "sliding_window_pattern": 2}


def of_one_that_sees(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a Gemma 3 with a vision tower."""
    return {"model_type": "gemma3", "vision_config": {}, "text_config": config}


def with_a_tower(name: str) -> str:
    """Return what a Gemma 3 that sees calls a tensor of its decoder."""
    return name.replace("model.", "model.language_model.", 1)


READ: dict[str, tuple[Callable[[Any], Any], Callable[[str], str]]] = {
    "version 4": (of_version_4, str),
    "with a tower": (of_one_that_sees, with_a_tower),
    "with a tower, version 4": (
        lambda config: of_one_that_sees(of_version_4(config)),
        lambda name: f"language_model.{name}",
    ),
}


@pytest.mark.parametrize(
    "way", [pytest.param(x, marks=pytest.mark.sweep if x == "with a tower" else ()) for x in READ]
)
def test_folders_of_other_versions_are_read(way: str, tmp_path: Path) -> None:
    configured, named = READ[way]
    model, folder = tiny(KIND), tmp_path / "model"
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(configured(config)))
    held = {named(name): each for name, each in load_file(folder / "model.safetensors").items()}
    if "tower" in way:
        held["vision_tower.vision_model.post_layernorm.weight"] = torch.ones(4)
        held["multi_modal_projector.mm_soft_emb_norm.weight"] = torch.ones(4)
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    whole = {"model": {"bidirectional_images": True}} if "tower" in way else {}
    assert deviation(made(KIND, "one rank", folder, **whole), model, tmp_path) < 1e-5


def deviation(asked: Spec, model: Any, run: Path) -> float:
    """Return the largest difference of logits on one rank by the largest logit."""
    with torch.no_grad():
        wanted: Tensor = model(input_ids=tokens_of(asked)).logits.double()
    [part] = run_ranks(logits_on_rank, asked, run, world_size=1)
    return float((joined(asked, [part], VOCAB) - wanted).abs().max() / wanted.abs().max())


WRONG: dict[str, dict[str, Any]] = {
    "window": {"sliding_window": SlidingWindow(size=6, full=(1,), rope_theta=20.0)},
    "layers": {"sliding_window": SlidingWindow(size=5, full=(0,), rope_theta=20.0)},
    "local base": {"sliding_window": SlidingWindow(size=5, full=(1,), rope_theta=None)},
    "scaling": {"rope_scaling": None},
    "activation": {"activation": "silu"},
    "offset": {"norm_offset": False},
    "scale of embeddings": {"embedding_scale": None},
    "scale of scores": {"query_pre_attn_scalar": None},
}


@pytest.mark.parametrize(
    "wrong", [pytest.param(x, marks=pytest.mark.sweep if x != "window" else ()) for x in WRONG]
)
def test_the_bound_sees_a_wrong_setting(wrong: str, tmp_path: Path) -> None:
    model = tiny(KIND)
    save(model, tmp_path / "model")
    asked = made(KIND, "one rank", tmp_path / "model")
    changed = asked.language.model.model_copy(update=WRONG[wrong])
    language = asked.language.model_copy(update={"model": changed})
    asked = asked.model_copy(update={"modules": {"language": language}})
    assert deviation(asked, model, tmp_path) > 1e-4


LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "experts": {
        "dp": 2, "experts": {"ep": 2},
        "model": {"moe": {"experts": 4, "top_k": 2, "width": 32, "every": 2}},
    },
}  # fmt: skip
OFTEN = {"tp 2, cp 2, documents", "experts"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_with_windows_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(sliding(**LAYOUTS[layout]))) == []


WHOLE_IMAGES: dict[str, dict[str, Any]] = {
    "tp 2": {"tp": 2, "sequence_parallel": True},
    "tp 4, cp 2": {"tp": 4, "cp": 2},
    "cp 2": {"cp": 2},
    "cp 4": {"cp": 4},
    "pp 2, full sharding": {"pp": 2, "sharding": "full"},
    "cp 2, pp 2, documents": {"cp": 2, "pp": 2, "data": {"max_documents": 3}},
    "dp 2, recompute": {"dp": 2, "recompute": "full"},
    "cp 2, packed": {"cp": 2, "data": {"packing": True}},
    "sinks, cp 2": {"cp": 2, "model": {"attention_sinks": True}},
    "three axes, one window": {
        "cp": 2,
        "model": {"sliding_window": None, "head_dim": 12, "mrope": [2, 2, 2]},
    },
}


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(x, marks=() if x == "cp 2, pp 2, documents" else pytest.mark.sweep)
        for x in WHOLE_IMAGES
    ],
)
def test_gradients_of_images_seen_whole_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(seen_whole(**WHOLE_IMAGES[layout]))) == []
