"""What `export` writes, what it refuses, and that it leaves nothing half done."""

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.exports import digits_run

from mimo_launch.hugging_face.folder import read_headers

Cli = Callable[[str], tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_run(tmp_path_factory.mktemp("export"))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_module_becomes_a_folder(run: Path, tmp_path: Path, run_cli: Cli) -> None:
    code, out, err = run_cli(f"export {run} --to {tmp_path}/out --module language")
    assert (code, err) == (0, f"reads {run}/checkpoints/step-00000002 (" + err.partition("(")[2])
    assert out.startswith(f"wrote {tmp_path}/out/language: LlamaForCausalLM, 21 tensors, float32,")
    names = {"config.json", "model.safetensors"}
    assert files(tmp_path / "out") == {"export.json", *(f"language/{name}" for name in names)}
    note = json.loads((tmp_path / "out/export.json").read_text())
    assert (note["step"], note["folders"]) == (2, {"language": ["language"]})
    # The digits have 24 words and a placeholder; rows that pad them to 128 stay behind.
    assert read_headers(tmp_path / "out/language")["lm_head.weight"].shape == (25, 32)


def test_an_earlier_checkpoint_and_another_type(run: Path, tmp_path: Path, run_cli: Cli) -> None:
    options = "--module language --checkpoint 1 --dtype bf16"
    assert run_cli(f"export {run} --to {tmp_path}/out {options}")[0] == 0
    assert json.loads((tmp_path / "out/export.json").read_text())["step"] == 1
    assert {each.dtype for each in read_headers(tmp_path / "out/language").values()} == {"BF16"}


@pytest.mark.parametrize(
    ("options", "says", "help_"),
    [
        ("--checkpoint 7", "has no checkpoint of step 7; there are those of 1, 2", "help: "),
        (
            "--module sound",
            "there is no module `sound`; the modules are vision, language",
            "   = help: --module language exports what can be\n",
        ),
        (
            "--module language --dtype source",
            "the source of `language` is not known",
            "   = help: --dtype auto takes the type of training where no folder is known\n",
        ),
        ("--dtype source", "`vision` is no", "help: --module language --dtype auto exports what"),
        (
            "--max-shard-size 5 --module language",
            "--max-shard-size",
            "a size is a number and a unit",
        ),
    ],
)
def test_what_is_refused(
    options: str, says: str, help_: str, run: Path, tmp_path: Path, run_cli: Cli
) -> None:
    code, out, err = run_cli(f"export {run} --to {tmp_path}/out {options}")
    assert (code, out) == (2, "")
    assert says in err
    assert help_ in err
    assert not any(tmp_path.iterdir())


def test_no_run(tmp_path: Path, run_cli: Cli) -> None:
    assert run_cli(f"export {tmp_path}/none --to {tmp_path}/out")[::2] == (
        2,
        f"error: {tmp_path}/none is not a folder\n"
        "   = help: name a folder under runs/, or one of its checkpoints\n",
    )


def test_settings_that_no_architecture_has_are_all_named(tmp_path: Path, run_cli: Cli) -> None:
    run = digits_run(tmp_path, qk_norm=True, qkv_bias=True)
    code, _, err = run_cli(f"export {run} --to {tmp_path}/out {'--module language ' * 2}")
    assert code == 2
    assert len({*err.splitlines()}) == len(err.splitlines())
    # The nearest first.
    assert err.splitlines()[:2] == [
        "error: `language` is no qwen2 with `qk_norm: true`",
        "error: `language` is no qwen3 with `qkv_bias: true`",
    ]
    assert "error: `language` is no llama with `qkv_bias: true`, `qk_norm: true`" in err
    assert err.endswith("help: docs/families.md lists the models that can be exported\n")
    assert not (tmp_path / "out").exists()


def test_only_an_earlier_export_is_replaced(run: Path, tmp_path: Path, run_cli: Cli) -> None:
    command = f"export {run} --to {tmp_path}/out --module language"
    mine = tmp_path / "out" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("precious")
    for force in ("", " --force"):
        code, _, err = run_cli(command + force)
        assert (code, "is not an earlier export" in err) == (2, True)
    assert files(tmp_path) == {"out/mine.txt"}
    mine.unlink()
    assert run_cli(command)[0] == 0
    before = files(tmp_path)
    code, _, err = run_cli(command)
    assert (code, "--force replaces it" in err) == (2, True)
    (tmp_path / "out" / "old.txt").touch()
    assert run_cli(f"{command} --force")[0] == 0
    assert files(tmp_path) == before


def test_a_full_disk_leaves_nothing(run: Path, tmp_path: Path, run_cli: Cli) -> None:
    """A limit on the size of files stands for a full disk: both make a write fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        code, out, err = run_cli(f"export {run} --to {tmp_path}/out --module language")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (code, out) == (1, "")
    assert "File too large" in err
    assert os.listdir(tmp_path) == []


def test_a_damaged_checkpoint_is_not_exported(run: Path, tmp_path: Path, run_cli: Cli) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    data = copy / "checkpoints/step-00000002/__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    code, _, err = run_cli(f"export {copy} --to {tmp_path}/out --module language")
    assert (code, "the checksum of __0_0.distcp is another" in err) == (2, True)
    assert not (tmp_path / "out").exists()
