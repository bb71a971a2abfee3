"""First declarations of types that are not read: the nearest family, and what differs from it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.hugging_face import save, tiny

from mimo_launch.hugging_face.draft import Draft, drafts_of
from mimo_launch.hugging_face.draft_text import text_of
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import read_config
from mimo_launch.hugging_face.registry import FAMILIES

Cli = Callable[[str], tuple[int, str, str]]


def renamed(folder: Path, kind: str, **more: Any) -> tuple[Path, dict[str, Any]]:
    """Save a tiny model under a type that no family has; return its former configuration, too."""
    save(tiny(kind), folder)
    config = read_config(folder)
    new = {**config, "model_type": "unheard", **more}
    (folder / "config.json").write_text(json.dumps(new))
    return folder, config


def drafted(folder: Path) -> Draft:
    [found] = drafts_of(folder, read_config(folder))
    return found


def declared(text: str) -> Family:
    """Run the file, as the registry will; return its family."""
    names: dict[str, Any] = {}
    exec(text, names)
    family: Family = names["UNHEARD"]
    return family


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "olmo2", "glm4"])
def test_a_renamed_type_is_read_like_the_one_that_it_is(tmp_path: Path, kind: str) -> None:
    """Nothing is new, and the drafted family says of the folder what the real one says."""
    folder, config = renamed(tmp_path / "m", kind)
    draft = drafted(folder)
    assert (draft.new_tensors, draft.absent, draft.reshaped, draft.refused) == ((), (), (), ())
    # A Qwen2 asks for it only where it has windows.
    assert draft.new_settings.keys() <= {"max_window_layers"}
    family = declared(text_of([draft]))
    assert family.model_type == "unheard"
    assert family.keys(config) == FAMILIES[kind].keys(config)


def test_new_settings_and_tensors_are_named(tmp_path: Path) -> None:
    """A setting that no table reads is refused in another folder, until somebody decides."""
    from safetensors.torch import load_file, save_file

    folder, config = renamed(tmp_path / "m", "qwen3", gate_of_heads="sigmoid", use_cache=False)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for layer in range(config["num_hidden_layers"]):
        tensors[f"model.layers.{layer}.self_attn.gate.weight"] = tensors["model.norm.weight"]
        del tensors[f"model.layers.{layer}.self_attn.q_norm.weight"]
    save_file({k: v.clone() for k, v in tensors.items()}, file, {"format": "pt"})
    draft = drafted(folder)
    assert draft.family.model_type == "qwen3"
    assert draft.new_settings == {"gate_of_heads": "sigmoid", "max_window_layers": 28}
    assert draft.new_tensors == ("model.layers.*.self_attn.gate.weight",)
    assert draft.absent == ("model.layers.*.self_attn.q_norm.weight",)
    family = declared(text_of([draft]))
    assert list(family.refusals({**config, "gate_of_heads": "sigmoid"})) == []
    other = {**config, "gate_of_heads": "tanh"}
    assert list(family.refusals(other)) == ["gate_of_heads: tanh"]


def test_a_new_dropout_is_refused_unless_it_is_0(tmp_path: Path) -> None:
    folder, config = renamed(tmp_path / "m", "llama", residual_dropout=0.0)
    text = text_of([drafted(folder)])
    family = declared(text)
    assert family.random == ("attention_dropout", "residual_dropout")
    assert family.architecture == "LlamaForCausalLM"
    assert list(family.refusals({**config, "residual_dropout": 0.1})) == ["residual_dropout: 0.1"]
    assert "refusals" not in text


def test_tensors_of_another_shape_are_named(tmp_path: Path) -> None:
    folder, _ = renamed(tmp_path / "m", "llama", head_dim=64)
    assert any("q_proj.weight: [" in each for each in drafted(folder).reshaped)


def test_a_new_drop_of_layers_is_one_of_training(tmp_path: Path) -> None:
    folder, _ = renamed(tmp_path / "m", "llama", layerdrop=0.0)
    assert "layerdrop" in declared(text_of([drafted(folder)])).random


def test_a_part_that_no_type_is_like_is_not_declared(tmp_path: Path) -> None:
    """As the part of an Emu3 that turns pixels into words: it may be none of our modules."""
    folder, config = renamed(tmp_path / "m", "llama")
    coder = {"model_type": "unseen", "hidden_size": 16, "codebook_size": 8}
    text = {**config, "model_type": "unheard"}
    whole = {"model_type": "unread", "text_config": text, "coder_config": coder}
    (folder / "config.json").write_text(json.dumps(whole))
    drafts = drafts_of(folder, read_config(folder))
    assert [(each.model_type, each.is_far) for each in drafts] == [
        ("unheard", False), ("unseen", True),
    ]  # fmt: skip
    text_of_both = text_of(drafts)
    assert declared(text_of_both).model_type == "unheard"
    assert "UNSEEN" not in text_of_both
    assert "unseen (`coder_config`). No type that is read is like it" in text_of_both
    assert "import \n" not in text_of([each for each in drafts if each.is_far])


def test_the_command_prints_a_file(tmp_path: Path, run_cli: Cli) -> None:
    folder, _ = renamed(tmp_path / "m", "llama")
    code, out, _ = run_cli(f"inspect {folder} --draft")
    assert code == 0
    assert declared(out).model_type == "unheard"


def test_a_type_that_is_read_needs_no_draft(tmp_path: Path, run_cli: Cli) -> None:
    save(tiny("llama"), tmp_path / "m")
    code, out, err = run_cli(f"inspect {tmp_path / 'm'} --draft")
    assert (code, out) == (1, "")
    assert "nothing to draft" in err


def test_a_draft_is_no_json(tmp_path: Path, run_cli: Cli) -> None:
    code, out, err = run_cli(f"inspect {tmp_path} --draft --json")
    assert (code, out) == (2, "")
    assert f"mimo-launch inspect {tmp_path} --draft" in " ".join(err.split())
