"""What folders of towers and of LLaVA models say: config.json, and the names in their files."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.headers import NO_TENSORS

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.hugging_face.part import NoSuchPart
from mimo_launch.hugging_face.registry import part_of, parts_of
from mimo_launch.spec.spec import VitModel

TOWER: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "image_size": 17, "patch_size": 4, "num_channels": 1,
}  # fmt: skip
CLIP = {"model_type": "clip_vision_model", **TOWER}
SIGLIP = {"model_type": "siglip_vision_model", **TOWER}
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50, "rms_norm_eps": 1e-5,
}  # fmt: skip
PIXTRAL = {"model_type": "pixtral", "hidden_act": "silu"}
LLAVA = {
    "model_type": "llava",
    "vision_config": CLIP,
    "text_config": LLAMA,
    "image_token_index": 49,
}
OF_CLIP = "activation: quick_gelu, class_token: true, pre_norm: true, patch_bias: false"
TEXT = """version: 1
name: t
modules:
  vision:
    model: {kind: vit, layers: LAYERS, hidden: 64, heads: 4, mlp: 96, patch: 4, positions: learned,
            image: [4, 4], MORE}
    ranks: 0
    INIT
  language:
    model: {kind: decoder, layers: 2, hidden: 64, heads: 4, kv_heads: 2, mlp: 96, vocab: 50}
    ranks: 0
batch: {global: 2, seq: 64}
data: {kind: synthetic, image: [4, 4]}
train: {steps: 1}
"""


def found(
    folder: Path, config: dict[str, Any], more: str = OF_CLIP, layers: int = 2
) -> tuple[Diagnostic, ...]:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(NO_TENSORS)
    text = TEXT.replace("LAYERS", str(layers)).replace("MORE", more)
    return check_text(text.replace("INIT", f"init_from: {folder}")).diagnostics


@pytest.mark.parametrize(
    ("config", "more", "layers"),
    [
        (LLAVA, f"{OF_CLIP}, final_norm: false", 2),
        ({**LLAVA, "vision_feature_layer": -1}, f"{OF_CLIP}, final_norm: false", 3),
        ({**LLAVA, "vision_feature_layer": 1}, f"{OF_CLIP}, final_norm: false", 1),
        (
            {**LLAVA, "vision_config": SIGLIP, "vision_feature_select_strategy": "full"},
            "activation: gelu_tanh, norm_eps: 1e-6, final_norm: false",
            2,
        ),
        (CLIP, OF_CLIP, 3),
        (CLIP, f"{OF_CLIP}, final_norm: false", 2),
        (CLIP, f"{OF_CLIP}, shuffle: 2, projector: linear", 2),
        (SIGLIP, "activation: gelu_tanh, norm_eps: 1e-6", 3),
        (
            {"model_type": "siglip", "vision_config": TOWER},
            "activation: gelu_tanh, norm_eps: 1e-6",
            3,
        ),
        ({"model_type": "clip", "vision_config": CLIP}, OF_CLIP, 3),
    ],
)
def test_a_folder_of_the_same_tower_passes(
    config: dict[str, Any], more: str, layers: int, tmp_path: Path
) -> None:
    """A tower alone lends its first layers, and says nothing of the projector."""
    assert found(tmp_path / "model", config, more, layers) == ()


@pytest.mark.parametrize(
    ("config", "layers", "keys"),
    [
        (LLAVA, 3, {"layers", "final_norm"}),
        (CLIP, 4, {"layers"}),
        ({**CLIP, "image_size": 20}, 2, {"image"}),
        ({**CLIP, "layer_norm_eps": 1e-6, "hidden_act": "gelu"}, 2, {"norm_eps", "activation"}),
        (SIGLIP, 2, {"class_token", "patch_bias", "pre_norm", "norm_eps", "activation"}),
        (
            {**LLAVA, "projector_hidden_act": "quick_gelu"},
            2,
            {"final_norm", "projector_activation"},
        ),
    ],
)
def test_a_value_that_differs_is_named(
    config: dict[str, Any], layers: int, keys: set[str], tmp_path: Path
) -> None:
    items = found(tmp_path / "model", config, layers=layers)
    assert {item.code for item in items} == {"init-from-unlike-model"}
    assert {item.path[-1] for item in items} == keys


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**LLAVA, "vision_feature_select_strategy": "full"}, "strategy: full`"),
        ({**LLAVA, "vision_config": SIGLIP}, "strategy: default`"),
        ({**LLAVA, "vision_feature_layer": [0, -1]}, "`vision_feature_layer: [0, -1]`"),
        ({**LLAVA, "vision_feature_layer": 0}, "`vision_feature_layer: 0`"),
        ({**LLAVA, "multimodal_projector_bias": False}, "`multimodal_projector_bias: false`"),
        ({**LLAVA, "projector_hidden_act": "relu"}, "`projector_hidden_act: relu`"),
        ({**LLAVA, "vision_config": {"model_type": "dinov2"}}, "model_type: dinov2`"),
        ({**LLAVA, "vision_config": PIXTRAL}, "strategy: default`"),
        ({**CLIP, "hidden_act": "silu"}, "`hidden_act: silu`"),
        ({**CLIP, "quantization_config": {"bits": 4}}, "`quantization_config: {"),
        (LLAMA, "`model_type: llama`"),
    ],
)
def test_what_is_not_computed_is_refused(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    [item] = found(tmp_path / "model", config)
    assert item.code == "init-from-not-supported"
    assert words in item.headline


def test_a_layer_that_the_tower_does_not_have(tmp_path: Path) -> None:
    [item] = found(tmp_path / "model", {**LLAVA, "vision_feature_layer": -5})
    assert item.why == "`vision_feature_layer` is -5, but the tower has 3 layers"


def test_towers_hold_no_decoder() -> None:
    for config in (CLIP, SIGLIP, {"model_type": "clip", "vision_config": CLIP}):
        assert [part.family.kind for part in parts_of(config)] == ["vit"]
        with pytest.raises(NoSuchPart):
            part_of(config, "decoder")


def test_old_configurations_of_clip_say_the_tower_twice() -> None:
    """As transformers: `vision_config_dict` is the whole truth where there is one."""
    transformers = pytest.importorskip("transformers")
    for second in (None, {"patch_size": 14, "hidden_size": 32, "num_attention_heads": 2}):
        config = {"vision_config": {**CLIP, "num_hidden_layers": 5}, "vision_config_dict": second}
        ours = part_of({"model_type": "clip", **config}, "vit").keys()
        theirs = transformers.CLIPConfig(**config).vision_config  # It changes what it gets.
        assert (ours["layers"], ours["hidden"], ours["patch"], ours["mlp"]) == (
            theirs.num_hidden_layers,
            theirs.hidden_size,
            theirs.patch_size,
            theirs.intermediate_size,
        )


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("vision_tower.encoder.layers.0.mlp.fc1.bias", "encoder.layers.0.mlp.fc1.bias"),
        ("vision_tower.vision_model.encoder.layers.0.x", "encoder.layers.0.x"),
        ("model.vision_tower.vision_model.pre_layrnorm.bias", "pre_layrnorm.bias"),
        ("multi_modal_projector.linear_1.bias", "multi_modal_projector.linear_1.bias"),
        ("model.multi_modal_projector.linear_2.bias", "multi_modal_projector.linear_2.bias"),
        ("language_model.model.norm.weight", None),
        ("model.language_model.norm.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_names_of_every_version_lead_to_one(name: str, inner: str | None) -> None:
    part = part_of(LLAVA, "vit")
    assert part.inner_name(name) == inner
    model = VitModel.model_validate({"kind": "vit", **part.keys()})
    assert part.is_ignored(name, model) == (inner is None)
    text = part_of(LLAVA, "decoder")
    assert (text.inner_name(name) is None) == (inner is not None)


def test_only_what_stands_behind_the_last_layer_is_ignored() -> None:
    part = part_of(LLAVA, "vit")
    model = VitModel.model_validate({"kind": "vit", **part.keys()})
    ignored = {
        "vision_tower.encoder.layers.2.mlp.fc1.bias": True,
        "vision_tower.encoder.layers.1.mlp.fc1.bias": False,
        "vision_tower.post_layernorm.weight": True,
        "vision_tower.pre_layrnorm.weight": False,
        "vision_tower.embeddings.position_ids": True,
        "vision_tower.head.probe": True,
        "something.else": False,
    }
    assert {name: part.is_ignored(name, model) for name in ignored} == ignored
