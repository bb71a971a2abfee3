"""Every configuration is read as transformers completes it, written back, or refused with a name.

The table is `tests/support/folders.py`; each test here holds for all of it.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from tests.support.folders import CONFIGS, GROWING, IGNORED, READ, REFUSED, SAME, UNLIKE, VIDEOS
from tests.support.headers import NO_TENSORS
from tests.support.specs import layout_specs
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.export.original_folders import WeightSource, whole_config
from mimo_launch.hugging_face.architectures import Modules, alone, obstacles, together
from mimo_launch.hugging_face.folder import ConfigError
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.registry import FAMILIES, part_of, parts_of
from mimo_launch.kinds.vocabulary import vocab_size
from mimo_launch.spec.load import model_from_data
from mimo_launch.spec.spec import Spec

# Of other types: the class of the same model. The audio of an Omni has no class.
CLASSES = {"kimi_k2": "deepseek_v3"}
WITHOUT_CLASS = {"Nemotron-3-Nano-Omni-30B-A3B", "Omni that predicts further tokens"}
# Their configurations leave out what classes write at two places; the files decide.
TIED_BY_FILES = {"Mistral-Small-3.1-24B", "Ministral-3-8B-2512", "Qwen3-VL-4B"}
# Of whole models, not of a part alone.
OF_WHOLES = {
    "bidirectional_images",
    "bidirectional_prompts",
    "features",
    "projector_out",
    "scaled_rows",
}


def plain(value: Any) -> Any:
    """Return a value of our keys as a spec has it."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def model_of(part: Part) -> Any:
    return model_from_data({"kind": part.family.kind, **plain(part.keys())})


@pytest.mark.parametrize("name", [each for each in CONFIGS if each not in WITHOUT_CLASS])
def test_what_is_left_out_is_what_transformers_takes(name: str) -> None:
    config = CONFIGS[name]
    kind = CLASSES.get(config["model_type"], config["model_type"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = CONFIG_MAPPING[kind](**json.loads(json.dumps(config))).to_dict()
    for part in parts_of(config):
        full = part_of(json.loads(json.dumps(written)), part.family.kind)
        dropped = {"tied"} if name in TIED_BY_FILES else set()
        found, wanted = (
            {k: v for k, v in p.keys().items() if k not in dropped} for p in (part, full)
        )
        assert found == wanted
        # The defaults of two bare parts do not fit each other.
        assert part.not_computed() == ()
        assert "bare parts" in name or full.not_computed() == ()


def test_the_text_of_a_qwen3_vl_has_no_windows() -> None:
    text = FAMILIES["qwen3_vl_text"]
    sizes = {
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]},
    }  # fmt: skip
    windows = {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 0}
    states = []
    for config in (sizes, sizes | windows):
        torch.manual_seed(0)
        model = Qwen3VLTextModel(CONFIG_MAPPING["qwen3_vl_text"](**config))
        states.append(model(torch.arange(8)[None]).last_hidden_state)
    torch.testing.assert_close(*states, rtol=0, atol=0)
    assert text.keys(sizes | windows)["sliding_window"] is None
    assert not any(text.refusals(sizes | windows))


def test_windows_inside_of_frames_are_refused() -> None:
    windows = {"sliding_window": 4, "max_window_layers": 0}
    found = [
        list(FAMILIES["qwen3_omni_moe_talker"].refusals({"code_predictor_config": inner}))
        for inner in ({}, {"sliding_window": 4}, windows)
    ]
    assert found == [[], [], ["code_predictor_config.sliding_window: 4"]]


@pytest.mark.parametrize("section", ["text_config", "code_predictor_config"])
def test_dropout_inside_of_a_talker_is_refused(section: str) -> None:
    config = {section: {"attention_dropout": 0.1}}
    (found,) = FAMILIES["qwen3_omni_moe_talker"].refusals(config)
    assert found.endswith("attention_dropout: 0.1")


@pytest.mark.parametrize("outer", [(), ("thinker_config",)])
def test_settings_around_nested_parts_are_refused(outer: tuple[str, ...]) -> None:
    config: dict[str, Any] = {"seconds_per_chunk": 4}
    for key in outer:
        config = {key: config}
    part = part_of(config | {"model_type": "qwen2_5_omni" + "_thinker" * (not outer)}, "vit")
    assert part.not_computed() == (".".join((*outer, "seconds_per_chunk: 4")),)


def test_dropout_of_sound_is_refused() -> None:
    config = {"model_type": "phi4_multimodal", "audio_config": {}, "embd_pdrop": 0.1}
    assert part_of(config, "conformer").not_computed() == ("embd_pdrop: 0.1",)


@pytest.mark.parametrize("name", READ)
def test_a_configuration_means(name: str) -> None:
    for kind, wanted in READ[name].items():
        part = part_of(CONFIGS[name], kind)
        for path, value in wanted.items():
            found: Any = part.keys()
            for key in path.split("."):
                found = found[key]
            if isinstance(value, dict):
                found = {key: found[key] for key in value}
            assert found == (pytest.approx(value) if isinstance(value, float) else value), path


def test_a_loaded_model_has_its_projector_beside_its_tower() -> None:
    """The name in a model of transformers, which adapters have; the tower has names without it."""
    part = part_of(CONFIGS["LLaVA, small"], "vit")
    name = part.projector["projector.up.weight"].name
    assert part.module_name(name) == "model.multi_modal_projector.linear_1.weight"
    assert part.module_name("pre_layrnorm.weight") == "model.vision_tower.pre_layrnorm.weight"


def test_a_loaded_model_may_have_names_of_its_own() -> None:
    part = part_of(CONFIGS["Cosmos 3 Omni"], "decoder")
    name, model = "layers.1.attention.q.weight", model_of(part)
    place = part.place(name, model)
    assert place is not None
    assert part.file_name(place.name) == "layers.1.self_attn.to_q.weight"
    wanted = "model.language_model.layers.1.self_attn.q_proj.weight"
    assert part.loaded(name, place, model).name == wanted


# Its tower has a norm because of its text, which has no such layers when it is written.
NOT_WRITTEN = {"Omni that predicts further tokens"}


@pytest.mark.parametrize("name", [each for each in CONFIGS if each not in NOT_WRITTEN])
def test_what_is_read_is_written(name: str) -> None:
    """Each part by itself; of a model with language, the whole under its own type and class."""
    config, models = CONFIGS[name], {}
    for part in parts_of(config):
        model = model_of(part)
        kind = part.family.kind
        models["language" if kind in ("decoder", "hybrid") else kind] = model
        read = part.family.keys(part.family.config(model))
        assert {k: v for k, v in read.items() if k not in OF_WHOLES} == {
            k: part.keys()[k] for k in read if k not in OF_WHOLES
        }
    if "language" not in models:
        return
    width = dict.fromkeys(models.keys() - {"language"}, models["language"].hidden)
    found = together(
        Modules(
            models=models, tokens=dict.fromkeys(width, 7), widths=width,
            like=frozenset({config["model_type"]}), of_language=config["model_type"],
        )
    )  # fmt: skip
    assert found is not None
    assert found.config["model_type"] == config["model_type"]
    sources = {
        name: WeightSource(Path(), config, part_of(config, model.kind), {})
        for name, model in models.items()
    }
    # What else the folder says is kept, but must not change the model.
    written = whole_config(found, sources, "float32", 64)
    for part in parts_of(config):
        assert part_of(found.config, part.family.kind).keys() == part.keys()
        assert part_of(written, part.family.kind).keys() == part.keys()
        assert part_of(written, part.family.kind).not_computed() == ()
    kind = CLASSES.get(config["model_type"], config["model_type"])
    classes = [
        getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").get(kind)
        for task in (
            "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SEQ_TO_SEQ_CAUSAL_LM",
            "IMAGE_CLASSIFICATION",
        )
    ]  # fmt: skip
    assert found.name in classes


def test_old_names_of_settings_do_not_undo_what_changed() -> None:
    """Published folders of LFM2 tie both ends by `tie_embedding`, which comes first."""
    config = CONFIGS["LFM2-1.2B"]
    part = part_of(config, "hybrid")
    model = model_of(part).model_copy(update={"tied": False})
    found = alone_of(model, like="lfm2")
    source = WeightSource(Path(), config, part, {})
    written = whole_config(found, {"m": source}, "float32", 64)
    assert part_of(written, "hybrid").keys() == {**part.keys(), "tied": False}
    assert written["conv_dim"] == config["conv_dim"]


CASES = [
    (*place, *(change if isinstance(change, tuple) else (change, "")))
    for place, changes in REFUSED.items()
    for change in changes
]


@pytest.mark.parametrize(("name", "kind", "section", "change", "words"), CASES)
def test_what_is_not_computed_is_refused(
    name: str, kind: str, section: str, change: dict[str, Any], words: str
) -> None:
    config = CONFIGS[name]
    inner = {
        k: v
        for k, v in ((config[section] if section else config) | change).items()
        if v is not None
    }
    found = part_of({**config, section: inner} if section else inner, kind).not_computed()
    [(key, value)] = [*change.items()][:1]
    said = value if isinstance(value, str) else json.dumps(value)
    assert [each.startswith(words or f"{key}: {said}") for each in found] == [True], found


def test_per_layer_embeddings_need_a_token_for_images() -> None:
    config = CONFIGS["Gemma 4, text, small"] | {"pad_token_id": None}
    assert part_of(config, "decoder").not_computed() == ("pad_token_id: null",)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_forms_of_one_model_mean_the_same(one: str, other: str) -> None:
    for part in parts_of(CONFIGS[one]):
        assert part_of(CONFIGS[other], part.family.kind).keys() == part.keys()


@pytest.mark.parametrize("name", VIDEOS)
def test_videos_are_timed_as_in_the_folder(name: str) -> None:
    said = VIDEOS[name]
    wanted = None if said is None else dict(zip(("time", "per_second"), said, strict=True))
    assert part_of(CONFIGS[name], "vit").video() == wanted


@pytest.mark.parametrize(("name", "kind", "tensor", "ignored"), IGNORED)
def test_tensors_for_further_tokens_are_left_out(
    name: str, kind: str, tensor: str, *, ignored: bool
) -> None:
    """By every module of a whole model, and by a folder of its text alone."""
    part = part_of(CONFIGS[name], kind)
    assert part.is_ignored(tensor, model_of(part)) == ignored


@pytest.mark.parametrize(("name", "kind", "change", "key", "said"), UNLIKE)
def test_a_spec_must_say_what_its_folder_says(
    name: str, kind: str, change: dict[str, Any], key: str | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    (tmp_path / "model.safetensors").write_bytes(NO_TENSORS)
    modules: dict[str, Any] = {}
    for part in parts_of(CONFIGS[name]):
        model = {"kind": part.family.kind, **plain(part.keys())}
        for path, value in change.items() if part.family.kind == kind else ():
            *outer, last = path.split(".")
            inner = model
            for each in outer:
                inner = inner[each]
            inner[last] = value
        module = "language" if part.family.kind in ("decoder", "hybrid") else "vision"
        modules[module] = {"model": model, "ranks": 0, "init_from": str(tmp_path)}
    if "vision" in modules:
        modules["vision"]["placeholder"] = 151655
    sections = {"batch": {"global": 2, "seq": 4096}, "train": {"steps": 1}}
    data = {"kind": "synthetic"} if "vision" in modules else {"kind": "synthetic", "text_only": 1.0}
    spec = {"version": 1, "name": "t", "modules": modules, "data": data, **sections}
    found = check_text(json.dumps(spec)).diagnostics
    items = [each for each in found if each.code.startswith("init-from") and each.is_error]
    others = {each.code for each in found if each.is_error and each not in items}
    assert key is not None or others <= {"memory-exceeded"}
    assert [item.path[-1] for item in items] == ([] if key is None else [key])
    for item in items:
        assert f"`{key}` of `" in item.headline
        assert said in item.headline.replace(f"{tmp_path}/config.json", "F")


def alone_of(model: Any, *, width: int = 0, like: str = "") -> Any:
    """Return the architecture of a model by itself."""
    modules = {"models": {"m": model}, "tokens": {}, "widths": {"m": width}}
    return alone(Modules(**modules, like=frozenset({like})), "m")


def test_the_balance_of_experts_is_a_setting_of_training() -> None:
    for name, wanted in (("gpt-oss-20b with all said", 0.9), ("Mixtral, small", 0.02)):
        assert part_of(CONFIGS[name], "decoder").training() == {"aux_loss": wanted}


def test_queries_may_grow_without_yarn() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.2}
    config = {**CONFIGS["Ministral 3, text"], "rope_parameters": rope}
    with pytest.raises(ConfigError, match="original_max_position_embeddings"):
        part_of(config, "decoder").keys()
    rope["original_max_position_embeddings"] = 99
    part = part_of(config, "decoder")
    keys = part.keys()
    growth = {"beta": 0.2, "length": 99, "first_position": 0}
    assert (keys["rope_scaling"], keys["query_scaling"]) == (None, growth)
    assert part.family.config(model_of(part))["rope_parameters"] == rope


@pytest.mark.parametrize(
    "settings", [{"no_rope_layers": 3}, {"no_rope_layers": [1, 0]}, {"no_rope_layer_interval": 0}]
)
def test_a_smollm3_says_of_every_layer_whether_it_has_positions(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"`no_rope_layers` is .*, not a list of 4 numbers"):
        part_of({**CONFIGS["SmolLM3 with windows"], **settings}, "decoder").keys()


def test_a_model_whose_two_lengths_differ_is_no_ministral3() -> None:
    keys = part_of(CONFIGS["Ministral 3, text"], "decoder").keys()
    keys["query_scaling"] = {"beta": 0.1, "length": 8192}
    assert alone_of(model_from_data({"kind": "decoder", **plain(keys)})) is None


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_without_growth_a_folder_stays_what_it_was(beta: float) -> None:
    rope = {**GROWING, "llama_4_scaling_beta": beta}
    part = part_of({**CONFIGS["Ministral 3, text"], "rope_parameters": rope}, "decoder")
    found = alone_of(model_of(part), like="ministral3")
    assert (found.name, found.parts["m"].keys()) == ("Ministral3ForCausalLM", part.keys())


def test_a_type_that_is_only_another_name_is_written_where_the_weights_came_from_it() -> None:
    for name, likes in (
        ("GLM-4.6V-Flash", {"": "glm4v", "glm4v": "glm4v", "glm46v": "glm46v"}),
        ("Kimi-K2-Instruct", {"": "deepseek_v3", "kimi_k2": "kimi_k2"}),
    ):
        parts = parts_of(CONFIGS[name])
        models = {
            "language" if x.family.kind == "decoder" else "vision": model_of(x) for x in parts
        }
        for like, wanted in likes.items():
            asked = Modules(models=models, tokens={"vision": 7}, widths={}, like=frozenset({like}))
            found = together(asked)
            assert found is not None
            assert found.config["model_type"] == wanted
    # With its own form of scaling.
    assert "rope_parameters" not in found.config
    assert found.config["rope_theta"] == CONFIGS[name]["rope_theta"]
    scaling = {**CONFIGS[name]["rope_scaling"], "truncate": True}
    assert found.config["rope_scaling"] == scaling


def test_a_tower_whose_mlps_are_not_as_wide_as_its_rows_is_no_glm4v() -> None:
    """Of transformers, one setting says both widths."""
    model = model_of(part_of(CONFIGS["GLM-4.1V-9B"], "vit"))
    for width, name in ((4096, "Glm4vVisionModel"), (2048, None)):
        found = alone_of(model, width=width)
        assert (found and found.name) == name


def test_a_width_that_no_layer_has_is_not_written() -> None:
    model = model_of(part_of(CONFIGS["Qwen3-Next-80B-A3B"], "hybrid"))
    assert "intermediate_size" not in alone_of(model).config


@pytest.mark.parametrize(
    "name", ["patch.bias", "positions.weight", "projector.linear.weight", "layers.0.x.weight"]
)
def test_names_that_a_tower_does_not_have_are_refused(name: str) -> None:
    part = part_of(CONFIGS["Qwen2-VL-7B"], "vit")
    with pytest.raises(KeyError):
        part.family.tensors.place(name, model_of(part))


def test_an_export_says_the_places_of_a_second() -> None:
    part = part_of(CONFIGS["Qwen2.5-VL-7B"], "vit")
    timed, seen = (
        part.family.config(model_from_data({"kind": "vit", **plain(part.keys()), "video": video}))
        for video in ({"time": "seconds", "per_second": 2.0}, {"time": "patches"})
    )
    assert timed["tokens_per_second"] == 2
    assert isinstance(timed["tokens_per_second"], int)
    assert "tokens_per_second" not in seen


@settings(max_examples=60)
@given(layout_specs(supported_only=False))
def test_every_family_says_what_it_lacks_for_any_model(made: Spec) -> None:
    for name, module in made.modules.items():
        words = {"vocab": vocab_size(made)} if name == "language" else {}
        model = module.model.model_copy(update=words)
        assert all(each.startswith("no ") for each in obstacles(model))
