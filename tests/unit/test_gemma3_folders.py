"""What configurations of published Gemma 3 models mean, and which settings are refused."""

import warnings
from typing import Any

import pytest

from mimo_launch.checks.all_checks import check
from mimo_launch.hugging_face import gemma3_text
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.load import model_from_data
from mimo_launch.spec.spec import Spec

COMMON = {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh"}
SCALED = {"factor": 8.0, "rope_type": "linear"}
TEXTS: dict[str, dict[str, Any]] = {
    "1b": {
        **COMMON, "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 256,
        "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4,
        "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    "4b": {
        **COMMON, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "rope_scaling": SCALED, "sliding_window": 1024,
    },
    "12b": {
        **COMMON, "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48,
        "num_attention_heads": 16, "num_key_value_heads": 8, "rope_scaling": SCALED,
        "sliding_window": 1024,
    },
    "27b": {
        **COMMON, "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
        "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168, "rope_scaling": SCALED, "sliding_window": 1024,
    },
}  # fmt: skip


@pytest.mark.parametrize("size", TEXTS)
def test_published_models_are_read_as_transformers_reads_them(size: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import Gemma3TextConfig
    theirs = Gemma3TextConfig(**TEXTS[size])
    keys = part_of(TEXTS[size], "decoder").keys()
    full = [i for i, kind in enumerate(theirs.layer_types) if kind == "full_attention"]
    rope = theirs.rope_parameters
    assert keys["sliding_window"] == {
        "size": theirs.sliding_window,
        "full": tuple(full),
        "rope_theta": rope["sliding_attention"]["rope_theta"],
    }
    assert keys["rope_theta"] == rope["full_attention"]["rope_theta"] == 1e6
    scaling = keys["rope_scaling"] or {"rope_type": "default", "factor": None}
    assert scaling["rope_type"] == rope["full_attention"]["rope_type"]
    assert scaling["factor"] == rope["full_attention"].get("factor")
    for ours, name in (
        ("layers", "num_hidden_layers"), ("hidden", "hidden_size"), ("head_dim", "head_dim"),
        ("heads", "num_attention_heads"), ("kv_heads", "num_key_value_heads"),
        ("mlp", "intermediate_size"), ("vocab", "vocab_size"), ("norm_eps", "rms_norm_eps"),
        ("tied", "tie_word_embeddings"),
    ):  # fmt: skip
        assert keys[ours] == getattr(theirs, name), ours
    assert (keys["query_pre_attn_scalar"] or keys["head_dim"]) == theirs.query_pre_attn_scalar
    model = {"kind": "decoder", **keys}
    spec = Spec.model_validate(
        {
            "version": 1, "name": "gemma", "modules": {"language": {"model": model, "ranks": 0}},
            "batch": {"global": 2, "seq": 4096}, "train": {"steps": 1},
            "data": {"kind": "synthetic", "text_only": 1.0},
        }
    )  # fmt: skip
    assert [found for found in check(spec) if found.is_error] == []


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention: True"),
        ({"layer_types": ["full_attention", "chunked"]}, "layer_types: chunked"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type: yarn"),
        ({"hidden_activation": "gelu"}, "hidden_activation: gelu"),
    ],
)
def test_settings_that_are_not_computed_are_refused(changed: dict[str, Any], setting: str) -> None:
    [found] = part_of({**TEXTS["1b"], **changed}, "decoder").not_computed()
    assert found.lower() == setting.lower()


def test_a_cap_of_logits_is_read_and_written() -> None:
    part = part_of({**TEXTS["1b"], "final_logit_softcapping": 30.0}, "decoder")
    assert part.not_computed() == ()
    assert part.keys()["logit_softcap"] == 30.0
    model = model_from_data({"kind": "decoder", **part.keys()})
    assert gemma3_text.TEXT.config(model)["final_logit_softcapping"] == 30.0


VISION = {
    "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type":
    "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
    "vision_use_head": False,
}  # fmt: skip
WHOLE: dict[str, Any] = {
    "model_type": "gemma3", "vision_config": VISION, "text_config": TEXTS["4b"],
    "mm_tokens_per_image": 256, "image_token_index": 262144,
}  # fmt: skip


def test_a_published_tower_makes_rows_of_sixteen_patches() -> None:
    part = part_of(WHOLE, "vit")
    assert part.not_computed() == ()
    keys = part.keys()
    assert (keys["image"], keys["shuffle"], keys["pooling"]) == ((64, 64), 4, "mean")
    assert (keys["projector_norm"], keys["projector_norm_eps"]) == ("rms", 1e-6)
    text = part_of(WHOLE, "decoder")
    assert text.not_computed() == ()
    assert text.keys()["bidirectional_images"]


@pytest.mark.parametrize("rows", [250, 9, 0])
def test_rows_that_do_not_cut_the_patches_are_refused(rows: int) -> None:
    changed = WHOLE | {"mm_tokens_per_image": rows}
    assert part_of(changed, "vit").not_computed() == (f"mm_tokens_per_image: {rows}",)
