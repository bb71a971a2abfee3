"""Configurations of published models are read, and their specs validate and plan at full size."""

import json
from pathlib import Path

import pytest
from tests.support.published import ENCODERS, MODELS, Config

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.cli.init_draft import Answers, draft
from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.hugging_face.registry import parts_of
from mimo_launch.hugging_face.settings import value_of
from mimo_launch.plan.plan import Plan

# Parts that no module of ours computes.
NOT_READ = {
    "Nemotron-3-Nano-Omni-30B-A3B": (
        "audio_config.model_type: parakeet; no audio of a nemotron_h_omni is read; "
        "read are vision and language; `mimo-launch inspect --families` lists all types",
    ),
}
OFTEN = {"Llama-3.2-1B", "gemma-3-4b"}


def written(folder: Path, config: Config) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def planned(answers: Answers) -> Plan:
    """Return the plan of the spec that is written; it has no error."""
    found = check_text(draft(answers))
    assert found.spec is not None
    assert [item for item in found.diagnostics if item.is_error] == []
    return Plan.of(found.spec)


# Types whose configuration class has the values of a published model by default, and GPUs for it.
BY_DEFAULT = {
    "deepseek_v3": 512, "qwen3_5": 32, "qwen3_5_moe": 32, "qwen2_5_omni": 16, "mistral4": 128,
}  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("model_type", BY_DEFAULT)
def test_defaults_of_configuration_classes_plan_at_full_size(
    model_type: str, tmp_path: Path
) -> None:
    from transformers import CONFIG_MAPPING

    config = json.loads(json.dumps(CONFIG_MAPPING[model_type]().to_dict()))
    if model_type.startswith("qwen3_5"):
        # The defaults of its two parts do not fit each other.
        config["vision_config"]["out_hidden_size"] = config["text_config"]["hidden_size"]
    folder, gpus = written(tmp_path / model_type, config), BY_DEFAULT[model_type]
    modules = read_contents(folder).modules
    assert modules
    assert [part.not_computed for part in modules] == [()] * len(modules)
    plan = planned(Answers(name="default", model=folder, gpus=gpus, gpu_memory="141GB"))
    assert plan.layout.world_size == gpus


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in MODELS]
)
def test_published_models_plan_at_full_size(name: str, tmp_path: Path) -> None:
    config, gpus = MODELS[name]
    folder = written(tmp_path / name, config)
    contents = read_contents(folder)
    assert contents.unread == NOT_READ.get(name, ())
    assert [part.not_computed for part in contents.modules] == [()] * len(contents.modules)
    plan = planned(Answers(name=name, model=folder, gpus=gpus, gpu_memory="141GB"))
    assert plan.layout.world_size == gpus
    drafted = {module.model.kind: module.model for module in plan.spec.modules.values()}
    for part in parts_of(config):
        if (model := drafted.get(part.family.kind)) is not None:
            wanted = part.keys()
            found = {key: value_of(model, key) for key in wanted}
            # Placeholders of encoders may need room behind the words.
            assert found.get("vocab", 0) >= wanted.get("vocab", 0)
            assert found | {"vocab": 0} == wanted | {"vocab": 0}


# They need more memory than eight GPUs have.
TOO_LARGE = {
    "GLM-4.5-Air", "GLM-4.5V", "GLM-4.6V", "Hy3-preview", "Kimi-K2-Instruct", "Llama-3.1-70B",
    "MiniMax-M2", "Qwen2.5-72B", "Qwen2.5-VL-72B", "Qwen3-Next-80B-A3B", "Qwen3-VL-235B-A22B",
    "gpt-oss-120b",
}  # fmt: skip


def test_forty_published_models_fit_eight_gpus() -> None:
    assert MODELS.keys() >= TOO_LARGE
    assert len(MODELS.keys() - TOO_LARGE) >= 40


@pytest.mark.sweep
@pytest.mark.parametrize("name", [each for each in MODELS if each not in TOO_LARGE])
def test_published_models_plan_on_8_and_on_64_gpus(name: str, tmp_path: Path) -> None:
    """What `inspect` reads, `init` drafts for either number, and the draft has a plan."""
    folder = written(tmp_path / name, MODELS[name][0])
    assert read_contents(folder).modules
    for gpus in (8, 64):
        answers = Answers(name=name, model=folder, gpus=gpus, gpu_memory="141GB")
        assert planned(answers).layout.world_size == gpus


@pytest.mark.sweep
@pytest.mark.parametrize("name", ENCODERS)
def test_published_encoders_plan_at_full_size(name: str, tmp_path: Path) -> None:
    module, config = ENCODERS[name]
    folders = {
        module: written(tmp_path / name, config),
        "language": written(tmp_path / "language", MODELS["Qwen3-0.6B"][0]),
    }
    plan = planned(Answers(name=name, folders=folders, gpus=8, gpu_memory="141GB"))
    assert plan.layout.world_size == 8
