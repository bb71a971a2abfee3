"""Folders with multi-token prediction: as `transformers` computes them, and as they were."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.distributed.test_exported_models import assert_same, saved_untouched
from tests.distributed.test_qwen_omni import losses_on_rank
from tests.support.exports import exported, tensors
from tests.support.hugging_face import ids_of, made, save, tiny, tokens_of, widen, widen_softmax

from mimo_launch.checkpoint.index import open_checkpoint
from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.export.export_plan import Exporter
from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

MTP = {"mtp": {"depth": 2, "loss_weight": 0.5}}
LAYERS = 2


def with_depths(kind: str, folder: Path, dtype: torch.dtype) -> None:
    """Save a model of two layers and two depths, in the form of the published ones."""
    model = tiny(kind, dtype, num_hidden_layers=LAYERS + 2)
    save(model, folder)
    held, random = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(3)
    for depth in range(2):
        layer, width = f"model.layers.{LAYERS + depth}", model.config.hidden_size
        shapes = {"enorm": (width,), "hnorm": (width,), "shared_head.norm": (width,)}
        for name, shape in (shapes | {"eh_proj": (width, 2 * width)}).items():
            noise = 0.2 * torch.randn(shape, generator=random)
            held[f"{layer}.{name}.weight"] = (noise + (len(shape) == 1)).to(dtype)
        held[f"{layer}.embed_tokens.weight"] = held["model.embed_tokens.weight"].clone()
        held[f"{layer}.shared_head.head.weight"] = held["lm_head.weight"].clone()
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("num_mtp_layers", None)
    config |= {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 2}
    config.pop("mlp_layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))


def right_losses(folder: Path, asked: Spec) -> list[float]:
    """Return the losses of the next token and of two further ones, as transformers has them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM
        from transformers.modeling_layers import MtpModel

        main = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, experts_implementation="eager"
        )
        # It knows the layers of the published sizes only.
        behind = [rf"model\.layers\.{LAYERS + depth}\." for depth in range(2)]
        main._keys_to_ignore_on_load_unexpected = behind
        mtp = MtpModel.from_pretrained(main, dtype=torch.float64)
    for model in (main, mtp):
        widen(model)
    dataset, tokens = build_dataset(asked), tokens_of(asked)
    labels = torch.stack(
        [torch.from_numpy(dataset.text("train", index)[1]) for index in ids_of(asked)]
    )
    places = torch.arange(tokens.shape[1])[None].expand(len(tokens), -1)
    with torch.no_grad():
        x = main.model(input_ids=tokens).last_hidden_state
        found = [F.cross_entropy(main.lm_head(x).flatten(0, 1), labels.flatten())]
        for depth in (1, 2):
            read = {"position_ids": places[:, depth:], "input_ids": tokens[:, depth:]}
            x = mtp.forward_layer(depth - 1, x[:, :-1], mtp_cache=None, **read)
            logits = mtp._project_to_logits(x)
            found.append(F.cross_entropy(logits.flatten(0, 1), labels[:, depth:].flatten()))
    return [float(each) for each in found]


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("deepseek_v3", "tp2 pp2"),
        pytest.param("glm4_moe", "cp2", marks=pytest.mark.sweep),
        pytest.param("glm4_moe", "tp2", marks=pytest.mark.sweep),
    ],
)
def test_losses_are_those_of_transformers(
    kind: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_depths(kind, tmp_path / "model", torch.float64)
    asked = made(kind, layout, tmp_path / "model", "fp64", model=MTP)
    (found, *_) = run_ranks(losses_on_rank, asked, tmp_path, world_size=world_size(asked))
    widen_softmax(monkeypatch)
    # Routers of transformers compute in fp32.
    right = right_losses(tmp_path / "model", asked)
    assert list(found.values()) == pytest.approx(right, rel=1e-7)


@pytest.mark.parametrize("kind", [pytest.param("deepseek_v3", marks=pytest.mark.sweep), "glm4_moe"])
def test_an_untouched_folder_comes_out_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """With every tensor of its depths, and without them where the spec has none."""
    folder = tmp_path / "model"
    with_depths(kind, folder, torch.bfloat16)
    whole = tensors(folder)
    for name, keys in (("with", MTP), ("without", {})):
        asked = made(kind, "tp2", folder, model=keys)
        found = exported(saved_untouched(asked, tmp_path / name), tmp_path / f"{name} out")
        behind = f"model.layers.{LAYERS}.", f"model.layers.{LAYERS + 1}."
        left = {each: x for each, x in whole.items() if keys or not each.startswith(behind)}
        assert_same(found, left)
        config = json.loads((tmp_path / f"{name} out" / "config.json").read_text())
        assert config["num_nextn_predict_layers"] == (2 if keys else 0)


def test_a_folder_says_what_it_has_besides(tmp_path: Path) -> None:
    with_depths("deepseek_v3", tmp_path, torch.bfloat16)
    [module] = read_contents(tmp_path).modules
    assert module.depths == 2
    assert "mtp" not in module.keys


def findings(folder: Path, kind: str, depth: int = 3, **more: Any) -> list[tuple[str, bool]]:
    asked = made(kind, "one rank", folder)
    model = type(asked.language.model).model_validate(
        {**asked.language.model.model_dump(), "mtp": {"depth": depth}}
    )
    language = asked.language.model_copy(update={"model": model, **more})
    asked = asked.model_copy(update={"modules": {"language": language}})
    found = [(each.code, each.is_error) for each in check(asked)]
    return [each for each in found if each[0].startswith("init-from")]


def test_depths_that_a_folder_lacks_are_said(tmp_path: Path) -> None:
    with_depths("deepseek_v3", tmp_path / "model", torch.bfloat16)
    assert findings(tmp_path / "model", "deepseek_v3") == [("init-from-not-supported", True)]
    save(tiny("llama"), tmp_path / "llama")
    assert findings(tmp_path / "llama", "llama") == [("init-from-unlike-model", True)]
    partial = findings(tmp_path / "llama", "llama", init_partial=True)
    assert partial == [("init-from-unlike-model", False)]


def test_a_depth_with_an_output_layer_of_its_own_is_refused(tmp_path: Path) -> None:
    """Ours has that of the model, so the values of the file would be lost without a word."""
    folder = tmp_path / "model"
    with_depths("deepseek_v3", folder, torch.bfloat16)
    assert findings(folder, "deepseek_v3", 2) == []
    held = load_file(folder / "model.safetensors")
    held[f"model.layers.{LAYERS + 1}.shared_head.head.weight"][-1, -1] += 1
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    assert findings(folder, "deepseek_v3", 2) == [("init-from-not-supported", True)]
    assert findings(folder, "deepseek_v3", 2, init_partial=True) == []


def test_other_families_are_trained_with_depths_and_written_without(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(tiny("llama", torch.bfloat16), folder)
    asked = made("llama", "one rank", folder)
    model = type(asked.language.model).model_validate({**asked.language.model.model_dump(), **MTP})
    language = asked.language.model_copy(update={"model": model, "init_partial": True})
    asked = asked.model_copy(update={"modules": {"language": language}})
    run = saved_untouched(asked, tmp_path / "run")
    assert_same(exported(run, tmp_path / "out"), tensors(folder))
    [plan] = Exporter(open_checkpoint(run, None)).folders([])
    assert any("`mtp` of `language` is left out" in note for note in plan.beside.notes)
