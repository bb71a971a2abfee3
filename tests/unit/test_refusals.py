"""Every refusal that is listed for a family or a whole model is raised, and listed once."""

import re
from typing import Any

import pytest

from mimo_launch.hugging_face.registry import FAMILIES, WHOLES

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
    "vocab_size": 50, "layers_block_type": ["moe"],
}  # fmt: skip
STRANGE = {"rope_type": "strange"}
# By a part of the words: a configuration that asks for what they refuse.
ASKING: dict[str, dict[str, Any]] = {
    "`layer_types`": {"layer_types": ["strange"] * 2},
    "of an odd number of patches": {"image_size": 9, "patch_size": 3},
    "`crop_size`": {"crop_size": 1},
    "`feature_layer`": {"feature_layer": 0},
    "a scaling of positions": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 9,
        },
    },
    "`rope_type`": {"rope_parameters": {"rope_type": "strange", "full_attention": STRANGE}},
    "`mlp_layer_types`": {"mlp_layer_types": ["sparse", "dense"]},
    "other than `qk_rope_head_dim`": {"rope_parameters": {"partial_rotary_factor": 0.3}},
    "`head_dim`": {"head_dim": 3},
    "`vision_feature_select_strategy`": {
        "vision_feature_select_strategy": "strange",
        "vision_config": {"model_type": "clip_vision_model"},
    },
    "`rope_theta`": {"rope_parameters": {"rope_theta": 1.0}},
    "no square": {"num_position_embeddings": 3, "num_patches": 3},
    "`deepstack_visual_indexes`": {"deepstack_visual_indexes": [1, 0]},
    "`merge_kernel_size` of two": {"merge_kernel_size": [1, 2]},
    "`image_size` of two": {"image_size": [28, 56]},
    "`patch_size` of two": {"patch_size": [14, 28]},
    "`layer_norm_eps`": {"layer_norm_eps": 0.1, "use_qk_norm": True},
    "`use_mean_pooling: false`": {"use_mean_pooling": False, "norm_type": "rms_norm"},
    "`max_img_size`": {"max_img_size": 1},
    "`use_sliding_window`": {"use_sliding_window": True, "max_window_layers": 0},
    "layers other than": {"layers_block_type": ["strange"]},
    "`vision_feature_layers`": {"vision_feature_layers": [-1]},
    "`vision_feature_layer`": {"vision_feature_layer": [0, 1], "vision_config": SIZES},
    "`downsample_ratio`": {"downsample_ratio": 0.3},
    "`pixel_shuffle_ratio`": {"pixel_shuffle_ratio": 0.3},
    "the width of a square of patches": {"intermediate_size": 7},
    "`num_kv_shared_layers`": {
        "num_kv_shared_layers": 1,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "`use_double_wide_mlp`": {
        "use_double_wide_mlp": True,
        "enable_moe_block": True,
        "num_kv_shared_layers": 1,
    },
    "`vocab_size_per_layer_input`": {
        "vocab_size_per_layer_input": 7,
        "hidden_size_per_layer_input": 8,
    },
    "`pad_token_id` of `null`": {"pad_token_id": None, "hidden_size_per_layer_input": 8},
    "`projector_input_dim`": {"projector_input_dim": 7},
    "`vision_output_dim`": {"vision_output_dim": 7},
    "`projection_dim` other": {"projection_dim": 3, "text_config": SIZES},
    "`pooling_kernel_size` of 1": {"pooling_kernel_size": 1},
    "`mm_tokens_per_image`": {"mm_tokens_per_image": 3, "vision_config": SIZES},
    "the width of a row": {"audio_config": {"intermediate_size": 7, "hidden_size": 64}},
    "`image_grid_pinpoints`": {"image_grid_pinpoints": [[1, 1]], "vision_config": SIZES},
    "`hidden_size` other than the width": {"vision_config": {"hidden_size": 3}},
    "`out_hidden_size`": {"vision_config": {"out_hidden_size": 3}},
    "`attention_dropout` of": {"attention_dropout": 0.1},
    "`output_dim`": {"audio_config": {"output_dim": 3}},
    "`mlp_bias` other than `qkv_bias`": {"mlp_bias": True},
    "a multiple of `patch_size`": {"image_size": 15},
    "`hidden_size` other than that of": {"hidden_size": 3},
    "`vocab_size` other than that of": {"vocab_size": 3},
    "of less than the 13 tokens": {"max_position_embeddings": 12},
    "`n_window` that is odd": {"n_window": 51},
    "`n_window_infer` of less": {"n_window_infer": 3},
    "other than that of the talker": {
        "code_predictor_config": {"hidden_size": 3, "num_code_groups": 3},
    },
    "where a layer slides": {
        "code_predictor_config": {
            **SIZES,
            "sliding_window": 4,
            "layer_types": ["sliding_attention"] * 2,
        },
    },
    "`num_code_groups` of one": {"num_code_groups": 1},
    "`text_config.model_type`": {"text_config": {"model_type": "strange"}},
    "`vision_config.model_type`": {"vision_config": {"model_type": "strange"}},
}
ALL = {**FAMILIES, **WHOLES}


def asking(words: str) -> dict[str, Any]:
    """Return a configuration that asks for what some words refuse."""
    found = (config for said, config in ASKING.items() if said in words)
    named = re.match(r"`(?:(\w+)\.)?(\w+)` other than", words)
    if named is None:
        return next(found, {})
    part, key = named.groups()
    if part is None:
        return next(found, {key: "strange"})
    return next(found, {part: SIZES | asking(words.replace(f"{part}.", ""))})


@pytest.mark.parametrize("name", ALL)
def test_every_refusal_is_raised(name: str) -> None:
    for rule in ALL[name].refusals.rules:
        if not rule.words.endswith("(left out)"):
            assert list(rule.found(SIZES | asking(rule.words))), rule.words


@pytest.mark.parametrize("name", ALL)
def test_no_setting_is_listed_twice(name: str) -> None:
    words = [rule.words for rule in ALL[name].refusals.rules]
    settings = [found[0] for each in words if (found := re.match(r"`\w+` other than", each))]
    assert len(set(settings)) == len(settings), settings


AXIAL = {
    name: rule
    for name, family in FAMILIES.items()
    for rule in family.refusals.rules
    if "`axial`" in rule.words
}


@pytest.mark.parametrize("name", AXIAL)
def test_a_tower_of_two_axes_may_call_its_positions_default(name: str) -> None:
    """As `transformers` writes `axial` for both, in towers that have no other kind."""
    for said in ("axial", "default"):
        assert list(AXIAL[name].found({"rope_parameters": {"rope_type": said}})) == []
    assert "pixtral" in AXIAL
