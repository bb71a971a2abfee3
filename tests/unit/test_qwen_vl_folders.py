"""What folders of Qwen-VL models say, in keys of a spec and without torch."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.headers import NO_TENSORS

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.hugging_face.families.qwen2_vl import QWEN2_5_VL_VISION, QWEN2_VL
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.spec import Videos, VitModel

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


# The same with the vision part of a Qwen2.5-VL, which has four layers.
WINDOWS = TEXT.replace(
    "activation: quick_gelu", "activation: swiglu, norm: rms, windows: {side: 4, full: [1, 3]}"
).replace("kind: vit, layers: 2", "kind: vit, layers: 4")
CONFIG_2_5: dict[str, Any] = {
    **CONFIG, "model_type": "qwen2_5_vl",
    "vision_config": {
        "depth": 4, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "in_chans": 3,
        "out_hidden_size": 512, "patch_size": 14, "spatial_merge_size": 2, "window_size": 112,
        "fullatt_block_indexes": [3, 1, 7], "tokens_per_second": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip


def headlines(folder: Path, *settings: str, **more: Any) -> list[str]:
    config = CONFIG_2_5 if more.get("model_type") == "qwen2_5_vl" else CONFIG
    (folder / "config.json").write_text(json.dumps({**config, **more}), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(NO_TENSORS)
    text = (WINDOWS if config is CONFIG_2_5 else TEXT).replace("FOLDER", str(folder))
    return [each.headline for each in check_text(text, overrides=settings).diagnostics]


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_both_modules_of_the_same_model_pass(kind: str, tmp_path: Path) -> None:
    assert headlines(tmp_path, model_type=kind) == []


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("windows=null", "`windows` of `vision` is null, but in F {side: 4, full: [1, 3]}"),
        ("windows.side=2", "`windows` of `vision` is {side: 2, full: [1, 3]}, but in F {side: 4,"),
        ("windows.full=[3]", "`windows` of `vision` is {side: 4, full: [3]}, but in F {side: 4,"),
        ("norm=layer", "`norm` of `vision` is layer, but in F rms"),
        ("activation=gelu", "`activation` of `vision` is gelu, but in F swiglu"),
    ],
)
def test_another_tower_is_named(setting: str, said: str, tmp_path: Path) -> None:
    [headline] = headlines(tmp_path, f"modules.vision.model.{setting}", model_type="qwen2_5_vl")
    assert headline.replace(f"{tmp_path}/config.json", "F").startswith(said)


def test_a_tower_with_windows_is_told_from_one_without(tmp_path: Path) -> None:
    setting = "modules.vision.model.windows={side: 4}"
    [headline] = headlines(tmp_path, setting)
    assert "`windows` of `vision` is {side: 4, full: []}, but in " in headline


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
    "name", ["patch.bias", "positions.weight", "projector.linear.weight", "layers.0.x.weight"]
)
def test_names_that_it_does_not_have_are_refused(name: str) -> None:
    model = VitModel(kind="vit", **part_of(CONFIG, "vit").keys())
    with pytest.raises(KeyError):
        QWEN2_VL.vision.tensors.place(name, model)


@pytest.mark.parametrize(
    ("kind", "video", "said"),
    [
        ("qwen2_vl", "{time: patches}", None),
        ("qwen2_vl", "{time: text}", "is {time: text, per_second: null}, but in F {time: patches,"),
        ("qwen2_5_vl", "{time: seconds, per_second: 2}", None),
        ("qwen2_5_vl", "{time: seconds, per_second: 4}", "per_second: 4}, but in F {time: seconds"),
    ],
)
def test_videos_are_timed_as_in_the_folder(
    kind: str, video: str, said: str | None, tmp_path: Path
) -> None:
    found = headlines(tmp_path, f"modules.vision.model.video={video}", model_type=kind)
    if said is None:
        assert found == []
    else:
        [headline] = found
        assert said in headline.replace(f"{tmp_path}/config.json", "F")


def test_an_export_says_the_places_of_a_second() -> None:
    keys = part_of(CONFIG_2_5, "vit").keys()
    seen = VitModel.model_validate({"kind": "vit", **keys, "video": {"time": "patches"}})
    timed = Videos(time="seconds", per_second=2.0)
    config = QWEN2_5_VL_VISION.config(seen.model_copy(update={"video": timed}))
    assert config["tokens_per_second"] == 2
    assert isinstance(config["tokens_per_second"], int)
    assert "tokens_per_second" not in QWEN2_5_VL_VISION.config(seen)
