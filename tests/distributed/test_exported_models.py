"""Whole models and encoders come back from a run as `transformers` wrote them, or trained."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.support import llava, qwen_vl, whisper
from tests.support.exports import (
    SAVES,
    bits,
    exported,
    load,
    save_on_rank,
    tensors,
    trained,
    with_sections,
)
from tests.support.hugging_face import ids_of, joined, logits_on_rank, save, tokens_of
from tests.support.running_ranks import run_on_running_ranks
from torch import Tensor

from mimo_launch.checkpoint.index import open_checkpoint
from mimo_launch.export.adapter_folder import adapter_plan, write_adapter
from mimo_launch.export.export_plan import CannotExport, Exporter
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

LEARN = {"train": {"steps": 2, "precision": "fp32"}, "optimizer": {"lr": 1e-2}}


def saved_untouched(spec: Spec, folder: Path) -> Path:
    asked = with_sections(spec)
    run_on_running_ranks(save_on_rank, asked, folder / "run", world_size=world_size(asked))
    return folder / "run"


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert bits(found[name]) == bits(tensor), name


def with_adapter(model: Any, folder: Path) -> Any:
    """Return a model of transformers with an adapter that peft loads, each tensor of it."""
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return PeftModel.from_pretrained(model, str(folder))


def wanted_logits(model: Any, made: Spec) -> Tensor:
    """Return what a LLaVA says of each sample of the first step, [samples, S, words]."""
    rows = []
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        pixels = llava.images_of(made, sample)
        with torch.no_grad():
            out = model(input_ids=tokens[None], pixel_values=pixels if len(pixels) else None)
        rows.append(out.logits)
    return torch.cat(rows).double()


def assert_close(found: Tensor, wanted: Tensor) -> None:
    assert wanted.std() > 0.1
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("tower", "text", "token", "dtype"),
    [("clip", "llama", 7, torch.bfloat16), ("siglip", "qwen2", 40, torch.float16)],
)
def test_an_untouched_llava_comes_out_bit_for_bit(
    tower: str, text: str, token: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """With the layers of its tower that no row passes, in its types, under the names of today."""
    save(llava.tiny_llava(tower, text, token, dtype), tmp_path / "model", max_shard_size="30KB")
    folder = tmp_path / "model"
    (folder / "preprocessor_config.json").write_text('{"mine": 1}')
    asked = llava.made_llava(tower, text, "tp2", folder, placeholder=token, precision="fp32")
    found = exported(saved_untouched(asked, tmp_path), tmp_path / "out")
    assert_same(found, tensors(folder))
    config, source = (
        json.loads((each / "config.json").read_text()) for each in (tmp_path / "out", folder)
    )
    assert config["image_token_index"] == source["image_token_index"] == token
    assert config["vision_feature_layer"] == source["vision_feature_layer"] == -2
    assert config["vision_config"]["num_hidden_layers"] == 3
    assert (tmp_path / "out" / "preprocessor_config.json").read_text() == '{"mine": 1}'


@pytest.mark.parametrize("kept", [True, False])
def test_a_trained_llava_has_the_same_logits(kept: bool, tmp_path: Path) -> None:
    """Also where its source is gone, so that only what was trained is written."""
    folder = tmp_path / "model"
    save(llava.tiny_llava("clip", "llama", 7), folder)
    asked = llava.made_llava("clip", "llama", "pp2", folder, placeholder=7, precision="fp32")
    asked = with_sections(asked, **LEARN)
    run = trained(asked, tmp_path / "run")
    if not kept:
        folder.rename(tmp_path / "moved")
    exported(run, tmp_path / "out")
    model = load("AutoModelForImageTextToText", tmp_path / "out")
    assert type(model).__name__ == "LlavaForConditionalGeneration"
    assert model.config.vision_config.num_hidden_layers == (3 if kept else 2)
    parts = run_on_running_ranks(logits_on_rank, asked, run, world_size=world_size(asked))
    assert_close(joined(asked, parts, llava.VOCAB), wanted_logits(model, asked))


def test_a_trained_adapter_is_merged_into_the_weights(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(llava.tiny_llava("clip", "llama", 7), folder)
    asked = llava.made_llava("clip", "llama", "pp2", folder, placeholder=7, precision="fp32")
    data = with_sections(asked, **LEARN).model_dump(mode="json", by_alias=True)
    for module in data["modules"].values():
        module["adapter"] = {"rank": 4, "alpha": 24.0}
    adapted = Spec.model_validate(data)
    run = trained(adapted, tmp_path / "run")
    found = exported(run, tmp_path / "out")
    before = tensors(folder)
    moved = {name for name, each in found.items() if not torch.equal(each, before[name])}
    assert {name.split(".")[-2] for name in moved} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "gate_proj", "up_proj", "down_proj",
        "fc1", "fc2",
    }  # fmt: skip
    model = load("AutoModelForImageTextToText", tmp_path / "out")
    parts = run_on_running_ranks(logits_on_rank, adapted, run, world_size=world_size(adapted))
    merged = joined(adapted, parts, llava.VOCAB)
    assert_close(merged, wanted_logits(model, adapted))
    checkpoint = open_checkpoint(run, None)
    plan = adapter_plan(checkpoint.spec, Exporter(checkpoint, in_memory=True).folders(()))
    write_adapter(checkpoint, plan, tmp_path / "adapter", force=False)
    beside = with_adapter(load("AutoModelForImageTextToText", folder), tmp_path / "adapter")
    assert_close(merged, wanted_logits(beside, adapted))


def test_what_came_from_no_folder_has_the_type_of_training(tmp_path: Path) -> None:
    """The norm as well that a LLaVA has behind its tower and that nothing was trained for."""
    tower = {"kind": "vit", "layers": 1, "hidden": 16, "heads": 2, "patch": 2, "channels": 3,
             "positions": "learned", "image": [2, 2], "class_token": True, "patch_bias": False,
             "pre_norm": True, "final_norm": False}  # fmt: skip
    words = {"kind": "decoder", "layers": 1, "hidden": 16, "heads": 2, "vocab": 40}
    asked = {
        "version": 1,
        "name": "new",
        "modules": {
            "vision": {"model": tower, "ranks": "0"},
            "language": {"model": words, "ranks": "0"},
        },
        "batch": {"global": 1, "seq": 16},
        "data": {"kind": "synthetic", "image": [2, 2]},
        "train": {"steps": 1, "precision": "bf16"},
        **SAVES,
    }
    found = exported(trained(Spec.model_validate(asked), tmp_path / "run"), tmp_path / "out")
    assert "vision_tower.post_layernorm.weight" in found
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("qwen2_vl", "Qwen2VisionTransformerPretrainedModel"),
        pytest.param(
            "qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel", marks=pytest.mark.sweep
        ),
        pytest.param("qwen3_vl", "Qwen3VLVisionModel", marks=pytest.mark.sweep),
    ],
)
def test_the_vision_part_of_a_qwen_vl_by_itself(kind: str, cls: str, tmp_path: Path) -> None:
    save(qwen_vl.tiny(kind=kind), tmp_path / "model")
    run = saved_untouched(qwen_vl.made("one rank", tmp_path / "model", kind=kind), tmp_path)
    exported(run, tmp_path / "out", ("vision",))
    wanted = {
        name.rpartition("visual.")[2]: tensor
        for name, tensor in tensors(tmp_path / "model").items()
        if "visual." in name
    }
    assert_same(tensors(tmp_path / "out/vision"), wanted)
    load(f"models.{kind}.modeling_{kind}.{cls}", tmp_path / "out/vision")
    with pytest.raises(CannotExport, match="is no qwen") as refused:
        exported(run, tmp_path / "no", ("language",))
    assert refused.value.instead.startswith("leave out --module: the whole run is a Qwen")
    with pytest.raises(CannotExport) as refused:
        exported(run, tmp_path / "no", ("visoin",))
    assert refused.value.instead == "--module vision exports what can be"


def test_a_trained_qwen2_vl_has_the_same_logits(tmp_path: Path) -> None:
    save(qwen_vl.tiny(), tmp_path / "model")
    asked = with_sections(qwen_vl.made("pp2, apart", tmp_path / "model"), **LEARN | {
        "train": {"steps": 2, "precision": "fp32", "seed": 9}
    })  # fmt: skip
    run = trained(asked, tmp_path / "run")
    exported(run, tmp_path / "out")
    model = load("AutoModelForImageTextToText", tmp_path / "out")
    assert type(model).__name__ == "Qwen2VLForConditionalGeneration"
    parts = run_on_running_ranks(logits_on_rank, asked, run, world_size=world_size(asked))
    assert_close(joined(asked, parts, qwen_vl.VOCAB), qwen_vl.wanted_logits(model, asked))


@pytest.mark.parametrize("tower", llava.TOWERS)
def test_a_tower_by_itself(tower: str, tmp_path: Path) -> None:
    """Bit for bit untouched, and its projector beside it."""
    folder = tmp_path / "model"
    save(llava.tiny_tower(tower), folder)
    asked = llava.made_tower(tower, folder, [4, 4], "fp32", layers=3)
    run = saved_untouched(asked, tmp_path)
    exported(run, tmp_path / "out", ("vision",))
    assert_same(tensors(tmp_path / "out/vision"), tensors(folder))
    projector = load_file(tmp_path / "out/vision/projector.safetensors")
    assert {name.split(".")[1] for name in projector} == {"up", "down"}
    said = json.loads((tmp_path / "out/vision/projector.json").read_text())
    assert said["projector"] == "mlp"
    assert projector["projector.up.weight"].shape[1] == said["in_features"] == 32
    load("AutoModel", tmp_path / "out/vision")


def test_an_encoder_of_whisper(tmp_path: Path) -> None:
    save(whisper.tiny(), tmp_path / "model")
    run = saved_untouched(whisper.made("tp2", tmp_path / "model"), tmp_path)
    exported(run, tmp_path / "out", ("audio",))
    wanted = {
        name.removeprefix("model.encoder."): tensor
        for name, tensor in tensors(tmp_path / "model").items()
        if name.startswith("model.encoder.")
    }
    assert_same(tensors(tmp_path / "out/audio"), wanted)
    load("models.whisper.modeling_whisper.WhisperEncoder", tmp_path / "out/audio")
    exported(run, tmp_path / "both", ())
    assert_same(tensors(tmp_path / "both/audio"), wanted)
    assert tensors(tmp_path / "both/language")
