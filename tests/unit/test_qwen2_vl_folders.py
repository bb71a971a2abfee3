"""What a folder of Qwen2-VL says, in keys of a spec and without torch."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.headers import NO_TENSORS

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.hugging_face import qwen2_vl
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.spec import DecoderModel, VitModel

TEXT = """version: 1
name: t
modules:
  vision:
    model: {kind: vit, layers: 2, hidden: 64, heads: 4, mlp: 128, patch: 14, channels: 3,
            shuffle: 2, temporal_patch: 2, positions: rope2d, patch_bias: false, norm_eps: 1e-6,
            activation: quick_gelu, projector: merger}
    ranks: 0
    placeholder: 49
    init_from: FOLDER
  language:
    model: {kind: decoder, layers: 2, hidden: 512, heads: 4, kv_heads: 2, mlp: 96, vocab: 50,
            qkv_bias: true, norm_eps: 1e-6, rope_theta: 1e6, mrope: [16, 24, 24]}
    ranks: 0
    init_from: FOLDER
batch: {global: 2, seq: 64}
data: {kind: synthetic}
train: {steps: 1}
"""
# As versions of transformers before 4.52 wrote it.
CONFIG: dict[str, Any] = {
    "model_type": "qwen2_vl", "hidden_size": 512, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {
        "depth": 2, "embed_dim": 64, "num_heads": 4, "mlp_ratio": 2, "in_chans": 3,
        "hidden_size": 512, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
}  # fmt: skip


def headlines(folder: Path, *settings: str, **more: Any) -> list[str]:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **more}), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(NO_TENSORS)
    text = TEXT.replace("FOLDER", str(folder))
    return [each.headline for each in check_text(text, overrides=settings).diagnostics]


def test_both_modules_of_the_same_model_pass(tmp_path: Path) -> None:
    assert headlines(tmp_path) == []


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("vision.model.positions=sincos", "`positions` of `vision` is sincos"),
        ("vision.model.temporal_patch=1", "`temporal_patch` of `vision` is 1"),
        ("vision.model.projector=mlp", "`projector` of `vision` is mlp"),
        ("language.model.mrope=[32, 16, 16]", "`mrope` of `language` is [32, 16, 16]"),
        ("language.model.mrope=null", "`mrope` of `language` is null"),
    ],
)
def test_another_model_is_named(setting: str, said: str, tmp_path: Path) -> None:
    [headline] = headlines(tmp_path, f"modules.{setting}")
    assert headline.startswith(f"{said}, but in {tmp_path}/config.json ")


def test_a_decoder_without_axes_is_told_from_one_with_them(tmp_path: Path) -> None:
    config = {"model_type": "qwen2", "rope_scaling": None}
    found = headlines(tmp_path, "modules.vision.init_from=null", **config)
    assert any("`mrope` of `language` is [16, 24, 24]" in each for each in found)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"hidden_act": "relu"}, "hidden_act: relu"),
        ({"rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}}, "rope_theta: 100.0"),
    ],
)
def test_what_the_vision_part_cannot_compute_is_named(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    [headline] = headlines(tmp_path, vision_config=CONFIG["vision_config"] | more)
    assert headline.endswith(f"with `{said}`")


def test_defaults_are_those_of_its_classes() -> None:
    """What its classes take by themselves: of the vision part that is every published one."""
    from transformers.models.qwen2_vl.configuration_qwen2_vl import (
        Qwen2VLTextConfig,
        Qwen2VLVisionConfig,
    )

    text = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2}
    text |= {"intermediate_size": 96, "vocab_size": 50}
    theirs = Qwen2VLTextConfig(**text, bos_token_id=1, eos_token_id=2).to_dict()
    folder = {"model_type": "qwen2_vl", "text_config": text, "vision_config": {}}
    written = folder | {
        "text_config": theirs,
        "vision_config": Qwen2VLVisionConfig().to_dict(),
    }
    for kind in ("vit", "decoder"):
        assert part_of(folder, kind).keys() == part_of(written, kind).keys()


def test_a_model_of_ours_says_what_its_configuration_is_read_as() -> None:
    for kind in ("vit", "decoder"):
        part = part_of(CONFIG, kind)
        made = VitModel if kind == "vit" else DecoderModel
        model = made(kind=kind, **part.keys())
        family = part.family
        assert family.fits(model)
        assert family.keys(family.config(model)) == part.keys()
    assert qwen2_vl.config_of({}, model, {}, 49)["image_token_id"] == 49


@pytest.mark.parametrize(
    "name", ["patch.bias", "positions.weight", "projector.linear.weight", "layers.0.x.weight"]
)
def test_names_that_it_does_not_have_are_refused(name: str) -> None:
    model = VitModel(kind="vit", **part_of(CONFIG, "vit").keys())
    with pytest.raises(KeyError):
        qwen2_vl.vision_place(name, model)
