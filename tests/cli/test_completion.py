"""A shell completes commands, options and names once it has been told to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# As bash calls it: the words so far, and which of them is completed.
ASK = """
. "$HOME/.bash_completions/mimo-launch.sh"
COMP_WORDS=(mimo-launch {words}) COMP_CWORD={last}
_mimo_launch_completion mimo-launch
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of somebody whose bash completes `mimo-launch`."""
    home = tmp_path_factory.mktemp("home")
    # Two commands: bash would replace itself by a single one, and is known by its process.
    said = bash(home, "mimo-launch --install-completion; echo done")
    assert said[0].startswith("bash completion installed in ")
    assert said[-1] == "done"
    assert "mimo-launch.sh" in (home / ".bashrc").read_text()
    return home


def bash(home: Path, script: str) -> list[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(home), "PATH": path}
    ran = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("tr", ["train"]),
        ("plan --trace", ["--trace", "--trace-ranks"]),
        ("explain grid-size", ["grid-size-mismatch"]),
        ("init --gpu h100", ["h100-80gb"]),
        ("--vers", ["--version"]),
    ],
)
def test_bash_completes(words: str, offered: list[str], home: Path) -> None:
    asked = ASK.format(words=words, last=len(words.split()))
    assert bash(home, asked) == offered
