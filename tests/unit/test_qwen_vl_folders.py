"""What folders of Qwen-VL models say, in keys of a spec and without torch."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support.headers import NO_TENSORS

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.hugging_face import qwen2_5_vl, qwen2_vl
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.load import model_from_data
from mimo_launch.spec.spec import DecoderModel, HybridModel, Videos, VitModel

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


# As versions of transformers before 5 wrote a Qwen3-VL.
CONFIG_3: dict[str, Any] = {
    "model_type": "qwen3_vl", "image_token_id": 49, "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 512, "intermediate_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
        "vocab_size": 50, "rms_norm_eps": 1e-6, "rope_theta": 5000000, "attention_bias": False,
        "rope_scaling": {
            "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
        },
    },
    "vision_config": {
        "deepstack_visual_indexes": [0, 2], "depth": 4, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 64, "in_channels": 3, "intermediate_size": 128, "model_type": "qwen3_vl",
        "num_heads": 4, "num_position_embeddings": 2304, "out_hidden_size": 512, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
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
    ("more", "said"),
    [
        ({"out_hidden_size": 256}, "out_hidden_size: 256"),
        ({"hidden_act": "gelu"}, "hidden_act: gelu"),
    ],
)
def test_what_a_tower_with_windows_cannot_compute_is_named(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    vision = CONFIG_2_5["vision_config"] | more
    [headline] = headlines(tmp_path, model_type="qwen2_5_vl", vision_config=vision)
    assert headline.endswith(f"with `{said}`")


def test_windows_are_read_as_their_whole_rows() -> None:
    """Where every layer attends to whole images, there are none."""
    for said, found in (
        ({"window_size": 139}, {"side": 4, "full": (1, 3)}),
        ({"window_size": 140}, {"side": 5, "full": (1, 3)}),
        ({"fullatt_block_indexes": []}, {"side": 4, "full": ()}),
        ({"fullatt_block_indexes": [0, 1, 2, 3]}, None),
    ):
        config = {**CONFIG_2_5, "vision_config": CONFIG_2_5["vision_config"] | said}
        keys = part_of(config, "vit").keys()
        assert keys["windows"] == found
        family = part_of(config, "vit").family
        assert family.keys(family.config(VitModel(kind="vit", **keys))) == keys


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


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("qwen2_vl", "Qwen2VL"), ("qwen2_5_vl", "Qwen2_5_VL"), ("qwen3_vl", "Qwen3VL"),
        ("qwen3_5", "Qwen3_5"), ("qwen3_5_moe", "Qwen3_5Moe"),
    ],
)  # fmt: skip
def test_defaults_are_those_of_its_classes(kind: str, name: str) -> None:
    """What its classes take by themselves: of a Qwen2-VL's vision part that is every published."""
    theirs_of = import_module(f"transformers.models.{kind}.configuration_{kind}")
    text_config, vision_config = (
        getattr(theirs_of, f"{name}{part}Config") for part in ("Text", "Vision")
    )
    text = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2}
    text |= {"intermediate_size": 96, "vocab_size": 50}
    theirs = text_config(**text, bos_token_id=1, eos_token_id=2).to_dict()
    folder = {"model_type": kind, "text_config": text, "vision_config": {}}
    written = folder | {
        "text_config": theirs,
        "vision_config": vision_config().to_dict(),
    }
    for part in ("vit", "hybrid" if kind.startswith("qwen3_5") else "decoder"):
        assert part_of(folder, part).keys() == part_of(written, part).keys()


@pytest.mark.parametrize("config", [CONFIG, CONFIG_2_5, CONFIG_3], ids=["2", "2.5", "3"])
def test_a_model_of_ours_says_what_its_configuration_is_read_as(config: dict[str, Any]) -> None:
    for kind in ("vit", "decoder"):
        part = part_of(config, kind)
        made = VitModel if kind == "vit" else DecoderModel
        model = made(kind=kind, **part.keys())
        family = part.family
        assert family.keys(family.config(model)) == part.keys()


def test_a_qwen3_vl_is_read() -> None:
    vision, text = (part_of(CONFIG_3, kind).keys() for kind in ("vit", "decoder"))
    assert (vision["deepstack"], vision["image"]) == ((0, 2), (48, 48))
    assert (text["mrope"], text["mrope_interleaved"]) == ((24, 20, 20), True)
    assert (text["rope_theta"], text["qk_norm"], text["head_dim"]) == (5e6, True, 128)
    assert text["tied"]


@pytest.mark.parametrize(
    "more",
    [
        {"deepstack_visual_indexes": [2, 0]},
        {"deepstack_visual_indexes": [2, 4]},
        {"num_position_embeddings": 2305},
        {"out_hidden_size": 256},
    ],
)
def test_what_a_qwen3_vl_cannot_have_is_named(more: dict[str, Any]) -> None:
    config = {**CONFIG_3, "vision_config": CONFIG_3["vision_config"] | more}
    [(key, value)] = more.items()
    assert part_of(config, "vit").not_computed() == (f"{key}: {json.dumps(value)}",)


@pytest.mark.parametrize(
    "name", ["patch.bias", "positions.weight", "projector.linear.weight", "layers.0.x.weight"]
)
def test_names_that_it_does_not_have_are_refused(name: str) -> None:
    model = VitModel(kind="vit", **part_of(CONFIG, "vit").keys())
    with pytest.raises(KeyError):
        qwen2_vl.VISION.place(name, model)


# As a Qwen3.5 of transformers 5 is written; every fourth layer attends.
CONFIG_3_5: dict[str, Any] = {
    "model_type": "qwen3_5", "image_token_id": 49, "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text", "hidden_size": 512, "intermediate_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
        "vocab_size": 50, "full_attention_interval": 4, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "attn_output_gate": True, "mtp_num_hidden_layers": 1,
        "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default",
            "rope_theta": 10000000, "partial_rotary_factor": 0.25,
        },
    },
    "vision_config": {
        "depth": 4, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4,
        "num_position_embeddings": 2304, "out_hidden_size": 512, "patch_size": 16,
    },
}  # fmt: skip
CONFIG_3_5_MOE: dict[str, Any] = {
    **CONFIG_3_5, "model_type": "qwen3_5_moe",
    "text_config": CONFIG_3_5["text_config"] | {
        "model_type": "qwen3_5_moe_text", "num_experts": 16, "num_experts_per_tok": 4,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    },
}  # fmt: skip


@pytest.mark.parametrize("config", [CONFIG_3_5, CONFIG_3_5_MOE], ids=["dense", "experts"])
def test_a_qwen3_5_is_read_as_a_hybrid(config: dict[str, Any]) -> None:
    """And written as what it was read from."""
    text, vision = part_of(config, "hybrid"), part_of(config, "vit")
    keys, has_experts = text.keys(), config is CONFIG_3_5_MOE
    assert keys["pattern"] == ("GEGEGE*E" if has_experts else "G-G-G-*-")
    assert (keys["rotary_factor"], keys["mrope"], keys["rope_theta"]) == (0.25, (6, 5, 5), 1e7)
    sizes = {"heads": 4, "key_heads": 2, "head_dim": 128, "key_dim": 128, "conv": 4}
    assert keys["deltanet"] == sizes
    assert vision.keys()["deepstack"] == ()
    model = HybridModel.model_validate({"kind": "hybrid", **keys})
    assert text.family.keys(text.family.config(model)) == keys
    assert [*text.not_computed(), *vision.not_computed()] == []


@pytest.mark.parametrize("config", [CONFIG_3_5, CONFIG_3_5_MOE], ids=["dense", "experts"])
@pytest.mark.parametrize("kind", ["hybrid", "vit"])
def test_layers_for_further_tokens_are_left_out(config: dict[str, Any], kind: str) -> None:
    """By every module of a whole model, and by a folder of its text alone."""
    part = part_of(config, kind)
    model = model_from_data({"kind": kind, **part.keys()})
    assert part.is_ignored("mtp.layers.0.self_attn.q_proj.weight", model)
    assert not part.is_ignored("strange.weight", model)
    text = config["text_config"]
    model = model_from_data({"kind": "hybrid", **part_of(text, "hybrid").keys()})
    assert part_of(text, "hybrid").is_ignored("mtp.fc.weight", model)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"hidden_act": "gelu"}, "hidden_act: gelu"),
        ({"attention_bias": True}, "attention_bias: true"),
        ({"layer_types": ["sliding_attention"]}, "layer_types: sliding_attention"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type: yarn"),
    ],
)
def test_what_a_qwen3_5_cannot_have_is_named(more: dict[str, Any], said: str) -> None:
    config = {**CONFIG_3_5, "text_config": CONFIG_3_5["text_config"] | more}
    assert part_of(config, "hybrid").not_computed() == (said,)


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
    config = qwen2_5_vl.VISION.config(seen.model_copy(update={"video": timed}))
    assert config["tokens_per_second"] == 2
    assert isinstance(config["tokens_per_second"], int)
    assert "tokens_per_second" not in qwen2_5_vl.VISION.config(seen)


def test_the_places_of_a_second_are_those_of_the_family(tmp_path: Path) -> None:
    without = {k: v for k, v in CONFIG_2_5["vision_config"].items() if k != "tokens_per_second"}
    part = part_of({**CONFIG_2_5, "vision_config": without}, "vit")
    assert part.video() == {"time": "seconds", "per_second": 4.0}
    assert part_of(CONFIG_3, "vit").video() == {"time": "text", "per_second": None}
