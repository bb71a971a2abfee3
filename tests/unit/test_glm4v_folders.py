"""What folders of GLM-4.1V and GLM-4.5V say, in keys of a spec and without torch."""

from importlib import import_module
from typing import Any

import pytest

from mimo_launch.hugging_face.architectures import Modules, alone, together
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.load import model_from_data
from mimo_launch.spec.spec import DecoderModel, VitModel

VISION: dict[str, Any] = {
    "hidden_size": 1536, "depth": 24, "num_heads": 12, "attention_bias": False,
    "intermediate_size": 13696, "hidden_act": "silu", "hidden_dropout_prob": 0.0,
    "image_size": 336, "patch_size": 14, "out_hidden_size": 4096, "rms_norm_eps": 1e-5,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "attention_bias": True, "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 13696, "max_position_embeddings": 65536, "num_attention_heads": 32,
    "num_hidden_layers": 40, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
    "vocab_size": 151552, "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
    "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]},
}  # fmt: skip
TOKENS: dict[str, Any] = {
    "image_token_id": 151343, "video_token_id": 151344, "image_start_token_id": 151339,
    "image_end_token_id": 151340, "video_start_token_id": 151341, "video_end_token_id": 151342,
}  # fmt: skip
NOW: dict[str, Any] = {
    key: each
    for key, each in TEXT.items()
    if key not in ("rope_theta", "rope_scaling", "partial_rotary_factor")
} | {
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12],
        "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
# A GLM-4.1V-9B as versions of transformers before 5 wrote it, and as 5 does.
EXPERTS: dict[str, Any] = NOW | {
    "hidden_size": 4096, "intermediate_size": 10944, "head_dim": 128, "num_attention_heads": 96,
    "num_hidden_layers": 46, "num_key_value_heads": 8, "vocab_size": 151552,
    "first_k_dense_replace": 1, "moe_intermediate_size": 1408, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_experts_per_tok": 8, "routed_scaling_factor": 1.0, "use_qk_norm": False,
}  # fmt: skip
OLD = {"model_type": "glm4v", **TOKENS, "text_config": TEXT, "vision_config": VISION}
CONFIG = {**OLD, "text_config": NOW}
# A GLM-4.5V.
WITH_EXPERTS = {**CONFIG, "model_type": "glm4v_moe", "text_config": EXPERTS}


@pytest.mark.parametrize("config", [CONFIG, OLD], ids=["now", "before"])
def test_a_published_configuration_is_read(config: dict[str, Any]) -> None:
    vision, text = (part_of(config, kind) for kind in ("vit", "decoder"))
    assert [*vision.not_computed(), *text.not_computed()] == []
    seen, said = vision.keys(), text.keys()
    assert (seen["image"], seen["mlp"], seen["projector_mlp"]) == ((24, 24), 4096, 13696)
    assert (seen["qkv_bias"], seen["block_bias"], seen["norm_eps"]) == (False, False, 1e-5)
    assert (said["rotary_factor"], said["mrope"], said["rope_theta"]) == (0.5, (8, 12, 12), 1e4)
    assert (said["kv_heads"], said["head_dim"], said["qkv_bias"]) == (2, 128, True)
    assert (said["post_norms"], said["rotary_interleaved"], said["tied"]) == (True, True, False)
    assert said["vocab"] == 151552
    assert vision.video() == {"time": "text_after", "per_second": None}


def test_a_published_configuration_with_experts_is_read() -> None:
    vision, text = (part_of(WITH_EXPERTS, kind) for kind in ("vit", "decoder"))
    assert [*vision.not_computed(), *text.not_computed()] == []
    assert vision.keys() == part_of(CONFIG, "vit").keys()
    said, moe = text.keys(), text.keys()["moe"]
    assert (said["heads"], said["kv_heads"], said["head_dim"], said["mlp"]) == (96, 8, 128, 10944)
    assert (said["rotary_factor"], said["rotary_interleaved"]) == (0.5, False)
    assert (said["post_norms"], said["qkv_bias"], said["output_bias"]) == (False, True, False)
    assert (moe["experts"], moe["top_k"], moe["width"], moe["shared"]) == (128, 8, 1408, 1408)
    assert (moe["score"], moe["first_dense"], moe["scale"]) == ("sigmoid", 1, 1.0)
    # Without biases, where the setting says so; without the part that rotates, a half does.
    plain = {key: each for key, each in EXPERTS.items() if key != "rope_parameters"}
    other = {**WITH_EXPERTS, "text_config": plain | {"attention_bias": False}}
    keys = part_of(other, "decoder").keys()
    assert (keys["qkv_bias"], keys["rotary_factor"]) == (False, 0.5)


@pytest.mark.parametrize("config", [CONFIG, WITH_EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize(("kind", "made"), [("vit", VitModel), ("decoder", DecoderModel)])
def test_a_model_of_ours_says_what_its_configuration_is_read_as(
    kind: str, made: Any, config: dict[str, Any]
) -> None:
    part = part_of(config, kind)
    model = made.model_validate({"kind": kind, **part.keys()})
    assert part.family.keys(part.family.config(model)) == part.keys()


@pytest.mark.parametrize(("kind", "name"), [("glm4v", "Glm4v"), ("glm4v_moe", "Glm4vMoe")])
def test_defaults_are_those_of_its_classes(kind: str, name: str) -> None:
    theirs_of: Any = import_module(f"transformers.models.{kind}.configuration_{kind}")
    text_config, vision_config = (
        getattr(theirs_of, f"{name}{part}Config") for part in ("Text", "Vision")
    )
    rope = {"mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
    text = text_config(rope_parameters=rope | {"rope_type": "default"}).to_dict()
    bare = {"model_type": kind, "text_config": {"rope_parameters": rope}}
    written = bare | {"text_config": text, "vision_config": vision_config().to_dict()}
    for part in ("vit", "decoder"):
        assert part_of(bare, part).keys() == part_of(written, part).keys()


@pytest.mark.parametrize(
    ("part", "more", "said"),
    [
        ("vit", {"hidden_act": "gelu"}, "hidden_act: gelu"),
        ("vit", {"attention_dropout": 0.1}, "attention_dropout: 0.1"),
        ("vit", {"out_hidden_size": 2048}, "out_hidden_size: 2048"),
        ("decoder", {"hidden_act": "gelu"}, "hidden_act: gelu"),
        ("decoder", {"attention_dropout": 0.1}, "attention_dropout: 0.1"),
        ("decoder", {"quantization_config": {"bits": 4}}, "quantization_config: "),
        ("decoder", {"rope_parameters": {"rope_type": "dynamic"}}, "rope_type: dynamic"),
    ],
)
def test_what_it_cannot_have_is_named(part: str, more: dict[str, Any], said: str) -> None:
    key = "vision_config" if part == "vit" else "text_config"
    [found] = part_of({**CONFIG, key: CONFIG[key] | more}, part).not_computed()
    assert found.startswith(said)


NEXT = {**CONFIG, "model_type": "glm46v"}


def test_a_glm46v_has_the_parts_of_a_glm4v_and_reads_no_videos() -> None:
    for kind in ("vit", "decoder"):
        found, same = part_of(NEXT, kind), part_of(CONFIG, kind)
        assert (found.keys(), found.not_computed()) == (same.keys(), ())
        assert found.video() is None
    # The parts may leave out their types, which are these.
    typed = {"model_type": "glm4v_text"}, {"model_type": "glm4v_vision"}
    named = NEXT | {"text_config": NOW | typed[0], "vision_config": VISION | typed[1]}
    assert part_of(named, "decoder").not_computed() == ()


@pytest.mark.parametrize("like", ["", "glm4v", "glm46v"])
def test_modules_are_written_as_the_type_that_they_came_from(like: str) -> None:
    vision, text = (
        made.model_validate({"kind": kind, **part_of(NEXT, kind).keys()})
        for kind, made in (("vit", VitModel), ("decoder", DecoderModel))
    )
    models = {"vision": vision, "language": text}
    found = together(
        Modules(models=models, tokens={"vision": 7}, widths={}, like=frozenset({like}))
    )
    assert found is not None
    assert found.config["model_type"] == (like or "glm4v")


@pytest.mark.parametrize(
    ("key", "other"), [("text_config", "glm4v_moe_text"), ("vision_config", "glm4v_moe_vision")]
)
def test_a_glm46v_with_other_parts_is_refused(key: str, other: str) -> None:
    config = NEXT | {key: NEXT[key] | {"model_type": other}}
    for kind in ("vit", "decoder"):
        assert part_of(config, kind).not_computed() == (f"{key}.model_type: {other}",)


def test_heads_fill_the_width_whatever_is_said() -> None:
    """Attention ignores `head_dim`, and always has biases."""
    text = NOW | {"head_dim": 64, "attention_bias": False}
    keys = part_of({**CONFIG, "text_config": text}, "decoder").keys()
    assert (keys["head_dim"], keys["qkv_bias"]) == (128, True)


def test_a_tower_whose_mlps_are_not_as_wide_as_its_rows_is_no_tower_of_it() -> None:
    """Of transformers, one setting says both widths."""
    keys = part_of(CONFIG, "vit").keys()
    model = model_from_data({"kind": "vit", **keys})
    for width, name in ((4096, "Glm4vVisionModel"), (2048, None)):
        modules = Modules(models={"vision": model}, tokens={}, widths={"vision": width})
        found = alone(modules, "vision")
        assert (found and found.name) == name
