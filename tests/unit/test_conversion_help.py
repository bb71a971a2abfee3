"""The commands that convert a file to YAML in UTF-8 write another file, and destroy none."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.spec.yaml_source import read_text

ROOT = Path(__file__).parents[2]
VALID = (ROOT / "tests" / "fixtures" / "valid.yaml").read_text(encoding="utf-8")
TOML = b"""version = 1
name = "fixture"
[modules.vision]
model = {kind = "vit", layers = 2, hidden = 64, heads = 4, patch = 4}
ranks = "0-3"
grid = {dp = 4}
[modules.language]
model = {kind = "decoder", layers = 2, hidden = 64, heads = 4, vocab = "digits"}
ranks = "4-7"
grid = {tp = 2, dp = 2}
[batch]
global = 32
seq = 64
[data]
kind = "digits"
"""
CONTENTS = {
    "toml": TOML,
    "utf-16": VALID.encode("utf-16"),
    "utf-16le": VALID.encode("utf-16le"),
    "utf-32": VALID.encode("utf-32"),
    "latin1": VALID.replace("name: fixture", "name: fixture  # \u00e9t\u00e9").encode("latin1"),
}
NAMES = [
    "spec.yaml",
    "spec.toml",
    "spec",
    "utf8.yaml",
    "spec-utf8.yaml",
    "spec-2.yaml",
    "my spec.yaml",
    "-spec.yaml",
    "it's $HOME.yaml",
    "a.b.yaml",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", CONTENTS)
def test_the_command_writes_a_valid_spec_beside_files_that_it_leaves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for other in NAMES:
        Path(other).write_text("kept", encoding="utf-8")
    Path(name).write_bytes(CONTENTS[content])
    before = {path: path.read_bytes() for path in Path().iterdir()}
    (found,) = load_and_check(name).diagnostics
    (command,) = re.findall(r"convert it: `(.+)`", found.help)
    python = shlex.quote(sys.executable)
    subprocess.run(command.replace("python ", f"{python} ", 1), shell=True, check=True)
    (new,) = set(Path().iterdir()) - set(before)
    assert {path: path.read_bytes() for path in before} == before
    assert load_and_check(new).spec is not None


@pytest.mark.parametrize("content", CONTENTS)
def test_a_command_for_the_standard_input_names_no_file(content: str) -> None:
    command = [sys.executable, "-m", "mimo_launch", "validate", "-"]
    done = subprocess.run(command, input=CONTENTS[content], capture_output=True, check=False)
    help_ = done.stderr.decode().partition("help:")[2].partition("= more")[0]
    assert "<stdin>" not in help_
    assert re.search(r"pipe it through `[^<>]+` first", " ".join(help_.split()))


def test_a_text_in_memory_has_no_file_to_convert() -> None:
    (found,) = read_text(TOML.decode()).diagnostics
    assert "<text>" not in found.help
