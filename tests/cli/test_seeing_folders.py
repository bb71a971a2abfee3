"""What folders of InternVL, Idefics3, SmolVLM and Mistral 3 say, in keys of a spec."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.headers import NO_TENSORS
from tests.support.hugging_face import save
from tests.support.seeing import tiny
from torch import nn

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.positions import LearnedPositions
from mimo_launch.spec.spec import DecoderModel, VitModel

REST = """version: 1
name: t
batch: {global: 2, seq: 2048}
data: {kind: synthetic, max_patches: 1024}
train: {steps: 1}
"""
QWEN3 = {"model_type": "qwen3", "vocab_size": 151936, "head_dim": 128, "rope_theta": 1000000}
# Of 1 B weights, and of 38 B with the tower of 6 B.
INTERNVL: dict[str, Any] = {
    "model_type": "internvl", "downsample_ratio": 0.5, "image_seq_length": 256,
    "image_token_id": 151671, "projector_hidden_act": "gelu", "tie_word_embeddings": True,
    "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
    "text_config": {
        **QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    },
    "vision_config": {
        "model_type": "internvl_vision", "attention_bias": True, "attention_dropout": 0.0,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 1024,
        "image_size": [448, 448], "intermediate_size": 4096, "layer_norm_eps": 1e-6,
        "layer_scale_init_value": 0.1, "norm_type": "layer_norm", "num_attention_heads": 16,
        "num_channels": 3, "num_hidden_layers": 24, "patch_size": [14, 14],
        "projection_dropout": 0.0, "use_absolute_position_embeddings": True,
        "use_mask_token": False, "use_mean_pooling": True, "use_qk_norm": False,
    },
}  # fmt: skip
LARGE: dict[str, Any] = {
    **INTERNVL, "tie_word_embeddings": False,
    "text_config": {
        **QWEN3, "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    },
    "vision_config": {
        **INTERNVL["vision_config"], "attention_bias": False, "use_qk_norm": True,
        "norm_type": "rms_norm", "hidden_size": 3200, "intermediate_size": 12800,
        "num_hidden_layers": 45, "num_attention_heads": 25,
    },
}  # fmt: skip
SMOLVLM: dict[str, Any] = {
    "model_type": "smolvlm", "image_token_id": 49190, "scale_factor": 3,
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32,
        "vocab_size": 49280, "rms_norm_eps": 1e-5, "rope_theta": 130000,
    },
    "vision_config": {
        "model_type": "smolvlm_vision", "hidden_size": 1152, "intermediate_size": 4304,
        "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 384, "patch_size": 14,
    },
}  # fmt: skip
# As versions before 4.50 called the part of the tower.
IDEFICS3 = {
    **SMOLVLM, "model_type": "idefics3", "scale_factor": 2,
    "vision_config": {**SMOLVLM["vision_config"], "model_type": "idefics3", "image_size": 364},
}  # fmt: skip
# Mistral Small 3.1.
MISTRAL3: dict[str, Any] = {
    "model_type": "mistral3", "image_token_index": 10, "multimodal_projector_bias": False,
    "projector_hidden_act": "gelu", "spatial_merge_size": 2, "vision_feature_layer": -1,
    "text_config": {
        "model_type": "mistral", "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 32768, "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e9,
        "sliding_window": None, "vocab_size": 131072,
    },
    "vision_config": {
        "model_type": "pixtral", "attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 1024, "image_size": 1540, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": 14,
        "rope_theta": 10000.0,
    },
}  # fmt: skip
ALL = {
    "internvl": INTERNVL, "large": LARGE, "smolvlm": SMOLVLM, "idefics3": IDEFICS3,
    "mistral3": MISTRAL3,
}  # fmt: skip
Cli = Callable[[str], tuple[int, str, str]]


@pytest.mark.parametrize("name", ALL)
def test_the_spec_of_a_published_size_is_valid(name: str, tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "config.json").write_text(json.dumps(ALL[name]))
    (tmp_path / "model.safetensors").write_bytes(NO_TENSORS)
    code, out, err = run_cli(f"inspect '{tmp_path}'")
    assert (code, err) == (0, "")
    token = ALL[name].get("image_token_id", ALL[name].get("image_token_index"))
    assert f"placeholder: {token}" in out
    errors = [x for x in check_text(REST + out[out.index("modules:") :]).diagnostics if x.is_error]
    assert [each.code for each in errors if each.code != "memory-exceeded"] == []


def test_a_large_internvl_is_read() -> None:
    vision, text = (part_of(LARGE, kind).keys() for kind in ("vit", "decoder"))
    assert (vision["norm"], vision["qk_norm"], vision["qkv_bias"]) == ("rms", True, False)
    assert (vision["image"], vision["shuffle"], vision["layers"]) == ((32, 32), 2, 45)
    assert (vision["layer_scale"], vision["projector_norm_eps"]) == (0.1, 1e-5)
    assert (text["layers"], text["qk_norm"], text["tied"]) == (64, True, False)


@pytest.mark.parametrize("config", ALL.values(), ids=ALL)
def test_a_model_of_ours_says_what_its_configuration_is_read_as(config: dict[str, Any]) -> None:
    for kind, made in (("vit", VitModel), ("decoder", DecoderModel)):
        part = part_of(config, kind)
        model = made(kind=kind, **part.keys())
        read = part.family.keys(part.family.config(model))
        assert {key: part.keys()[key] for key in read} == read


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hidden_act", "relu", "hidden_act: relu"),
        ("norm_type", "batch_norm", "norm_type: batch_norm"),
        ("image_size", [448, 224], "image_size: [448, 224]"),
        ("hidden_dropout_prob", 0.1, "hidden_dropout_prob: 0.1"),
        ("use_absolute_position_embeddings", False, "use_absolute_position_embeddings: false"),
        ("layer_norm_eps", 1e-5, "layer_norm_eps: 1e-05 with use_qk_norm: true"),
        ("use_mean_pooling", False, "use_mean_pooling: false with norm_type: rms_norm"),
    ],
)
def test_what_a_tower_of_internvl_cannot_have_is_named(key: str, value: Any, said: str) -> None:
    config = {**LARGE, "vision_config": LARGE["vision_config"] | {key: value}}
    assert part_of(config, "vit").not_computed() == (said,)


def test_a_mistral3_is_read() -> None:
    vision, text = (part_of(MISTRAL3, kind).keys() for kind in ("vit", "decoder"))
    assert (vision["patch"], vision["shuffle"], vision["pooling"]) == (14, 2, "linear")
    assert (vision["projector_bias"], vision["projector_norm_eps"]) == (False, 1e-5)
    assert (text["head_dim"], text["rope_theta"], text["tied"]) == (128, 1e9, False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        # What its class would have.
        ({"hidden_act": None}, ("hidden_act: gelu",)),
        ({"hidden_act": "gelu"}, ("hidden_act: gelu",)),
        ({"rope_theta": 1e6}, ("rope_theta: 1000000.0",)),
        ({"rope_parameters": {"rope_theta": 500.0}}, ("rope_theta: 500.0",)),
        ({"head_dim": 32}, ("head_dim: 32",)),
        ({"head_dim": 64}, ()),
    ],
)
def test_what_a_tower_of_pixtral_cannot_have_is_named(
    settings: dict[str, Any], said: tuple[str, ...]
) -> None:
    tower = {k: v for k, v in (MISTRAL3["vision_config"] | settings).items() if v is not None}
    assert part_of({**MISTRAL3, "vision_config": tower}, "vit").not_computed() == said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("projector_hidden_act", "relu"),
        ("multimodal_projector_bias", 1.5),
        ("vision_feature_layer", [-1, -2]),
    ],
)
def test_what_a_mistral3_cannot_have_is_named(key: str, value: Any) -> None:
    said = part_of({**MISTRAL3, key: value}, "vit").not_computed()
    assert said == (f"{key}: {json.dumps(value) if isinstance(value, list) else value}",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("downsample_ratio", 0.4),
        ("vision_feature_select_strategy", "full"),
        ("projector_hidden_act", "relu"),
        ("vision_feature_layer", [-1, -2]),
    ],
)
def test_what_an_internvl_cannot_have_is_named(key: str, value: Any) -> None:
    said = part_of({**INTERNVL, key: value}, "vit").not_computed()
    assert said == (f"{key}: {json.dumps(value) if isinstance(value, list) else value}",)


@pytest.mark.parametrize(
    ("kind", "name"), [("internvl", "InternVL"), ("idefics3", "Idefics3"), ("smolvlm", "SmolVLM")]
)
def test_defaults_are_those_of_its_classes(kind: str, name: str) -> None:
    classes = import_module(f"transformers.models.{kind}.configuration_{kind}")
    written = getattr(classes, f"{name}Config")().to_dict()
    kept = ("model_type", "text_config", "tie_word_embeddings")
    bare = {key: written[key] for key in kept}
    assert part_of(bare, "vit").keys() == part_of(written, "vit").keys()
    assert part_of(bare, "decoder").keys() == part_of(written, "decoder").keys()


@pytest.mark.parametrize("side", [3, 19, 27, 41])
def test_nearest_positions_are_those_of_transformers(side: int) -> None:
    """To the place, also where rounding in fp32 decides."""
    theirs = import_module("transformers.models.idefics3.modeling_idefics3")
    config: Any = import_module("transformers.models.idefics3.configuration_idefics3")
    made = theirs.Idefics3VisionEmbeddings(
        config.Idefics3VisionConfig(hidden_size=4, image_size=side, patch_size=1, num_channels=1)
    )
    nn.init.zeros_(made.patch_embedding.weight)
    nn.init.zeros_(made.patch_embedding.bias)
    ours = LearnedPositions(
        ParallelContext(), (side, side), 4, class_token=False, interpolation="nearest"
    )
    with torch.no_grad():
        ours.weight.copy_(made.position_embedding.weight)
        for height, width in ((side, side), (2 * side, side), (5, 38), (41, 7), (1, 50)):
            grid = torch.ones(1, height, width, dtype=torch.bool)
            wanted = made(torch.zeros(1, 1, height, width), grid)[0]
            y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            sizes = torch.tensor([height, width]).expand(height * width, 2)
            places = torch.cat([torch.stack([y.flatten(), x.flatten()], dim=1), sizes], dim=1)
            assert torch.equal(ours(places), wanted)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 8}},
            "    an image of shards becomes 5 to 17 of 8 x 8 pixels: tiles, then all of it",
        ),
        (
            {"do_resize": False},
            "    images of shards are not read: a setting of its SmolVLMImageProcessor is not "
            "supported: do_resize: false",
        ),
    ],
)
def test_inspect_says_what_becomes_of_an_image(
    settings: dict[str, Any],
    said: str,
    tmp_path: Path,
    run_cli: Callable[[str], tuple[int, str, str]],
) -> None:
    save(tiny("smolvlm"), tmp_path)
    config = {"image_processor_type": "SmolVLMImageProcessor", **settings}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    _, out, _ = run_cli(f"inspect '{tmp_path}'")
    assert said in out.splitlines()
    module, other = json.loads(run_cli(f"inspect '{tmp_path}' --json")[1])["modules"]
    assert (module["images"], other["images"]) == (said.strip(), None)
