"""What is said of the output layer that a folder holds or lacks, whatever its config.json says."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.test_checks_hugging_face import CONFIG, TEXT

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.hugging_face.contents import Module, read_contents
from mimo_launch.hugging_face.folder import read_headers
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.hugging_face.repeats import unlike

TIED = CONFIG | {"tie_word_embeddings": True}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SHAPES = {EMBEDDING: (50, 64), HEAD: (50, 64), "model.norm.weight": (64,)}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """Write a folder whose tensors are arrays of float32."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, array in tensors.items():
        start, end = end, end + array.nbytes
        shape = list(array.shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    content = b"".join(array.tobytes() for array in tensors.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    return folder


def random(*without: str) -> dict[str, Any]:
    draws = np.random.default_rng(1)
    found = {name: draws.normal(size=shape).astype("f4") for name, shape in SHAPES.items()}
    return {name: each for name, each in found.items() if name not in without}


def found(folder: Path, *, tied: bool = False, init_partial: bool = False) -> Sequence[Diagnostic]:
    text = TEXT.replace("vocab: 50", f"vocab: 50, tied: {str(tied).lower()}")
    more = "\n    init_partial: true" if init_partial else ""
    return check_text(text.replace("FOLDER", f"{folder}{more}")).diagnostics


def language(folder: Path) -> Module:
    return next(each for each in read_contents(folder).modules if each.name == "language")


def test_a_separate_output_layer_is_kept_though_the_configuration_ties_it(
    tmp_path: Path, run_cli: Callable[[str], tuple[int, str, str]]
) -> None:
    folder = write(tmp_path / "model", TIED, random())
    [item] = found(folder, tied=True)
    assert (item.code, item.path[-1], item.is_error) == ("init-from-unlike-model", "tied", True)
    assert item.headline.startswith("`tied` of `language` is true, but the output layer in ")
    assert f"{HEAD} and {EMBEDDING} differ" in item.why
    assert item.help == "write `tied: false` in `model`"
    assert found(folder, tied=False) == ()
    [warning] = found(folder, tied=True, init_partial=True)
    assert not warning.is_error
    assert language(folder).untied
    assert "tied" not in language(folder).keys
    _, out, _ = run_cli(f"inspect {folder}")
    assert "    its output layer is not the embedding, though config.json has `tie_word" in out
    _, out, _ = run_cli(f"inspect {folder} --json")
    [module] = json.loads(out)["modules"]
    assert (module["untied"], module["missing"]) == (True, [])
    assert read_contents(folder).left_out == {}


def test_the_same_values_once_more_are_left_out(tmp_path: Path) -> None:
    tensors = random()
    folder = write(tmp_path / "model", TIED, tensors | {HEAD: tensors[EMBEDDING]})
    assert found(folder, tied=True) == ()
    [item] = found(folder, tied=False)
    assert item.help == "write `tied: true` in `model`"
    assert not language(folder).untied
    assert read_contents(folder).left_out == {HEAD: "the output layer is the embedding"}


def test_the_output_layer_of_a_whole_model_is_compared_as_well(tmp_path: Path) -> None:
    tower = {
        "model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    whole = {
        "model_type": "llava", "vision_config": tower, "text_config": CONFIG,
        "tie_word_embeddings": True, "image_token_index": 49,
    }  # fmt: skip
    tensors = {f"language_model.{name}": each for name, each in random().items()}
    assert language(write(tmp_path / "model", whole, tensors)).untied
    same = tensors | {f"language_model.{HEAD}": tensors[f"language_model.{EMBEDDING}"]}
    assert not language(write(tmp_path / "model", whole, same)).untied


@pytest.mark.parametrize("at", [0, 30_000_000, -1])
def test_of_large_tensors_samples_are_compared(at: int, tmp_path: Path) -> None:
    """The first and the last block among them, and a few megabytes in all."""
    one = np.zeros((10_000, 4_000), "f4")
    other = one.copy()
    # New words and other rows differ as a whole; a single one in the middle may be missed here.
    other.reshape(-1)[at : at + 1_000_000 if at > 0 else at + 1 or None] = 1
    folder = write(tmp_path / "model", TIED, {EMBEDDING: one, HEAD: other})
    part, headers = part_of(TIED, "decoder"), read_headers(folder)
    assert list(unlike(folder, part, headers, {HEAD: EMBEDDING})) == [(HEAD, EMBEDDING)]


def test_a_missing_output_layer_is_said_with_both_ways_out(
    tmp_path: Path, run_cli: Callable[[str], tuple[int, str, str]]
) -> None:
    folder = write(tmp_path / "model", CONFIG, random(HEAD))
    [item] = found(folder)
    assert item.why == f"its files lack {HEAD}"
    assert "write `tied: true` in `model`" in item.help
    assert "`init_partial: true` in `language`" in item.help
    assert found(folder, tied=True) == found(folder, init_partial=True) == ()
    assert language(folder).missing == (HEAD,)
    _, out, _ = run_cli(f"inspect {folder}")
    said = "    missing: lm_head.weight: `train` starts only with `tied: true` in `model`, or with "
    assert f"{said}`init_partial: true` in `language`\n" in out


def test_other_missing_tensors_are_not_helped_by_tying(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", CONFIG, random(EMBEDDING))
    [item] = found(folder)
    assert "tied" not in item.help
    assert "`init_partial: true` in `language`" in item.help
    assert found(folder, init_partial=True) == ()


def test_of_a_tied_model_the_files_may_hold_either_tensor(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", TIED, random(EMBEDDING))
    assert found(folder, tied=True) == ()
    assert language(folder).missing == ()


def test_an_adapter_in_a_folder_is_not_left_out_without_a_word(tmp_path: Path) -> None:
    """`transformers` would add it to the weights."""
    folder = write(tmp_path / "model", CONFIG, random())
    assert found(folder) == ()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    [item] = found(folder)
    assert (item.code, item.is_error) == ("init-from-not-supported", True)
    assert "leaves out the adapter in" in item.headline
    assert "`init_partial: true` in `language`" in item.help
    [warning] = found(folder, init_partial=True)
    assert not warning.is_error
    assert any("adapter_config.json: an adapter" in each for each in read_contents(folder).unread)
