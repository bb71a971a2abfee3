"""Pages that run as written: real folders, real files, real commands, in one shell."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.docs.test_docs import AS_WRITTEN, ROOT, Block, blocks
from tests.support.published import MODELS

MARK = "=== command "
# The tests have installed it already.
LEFT_OUT = "pip install "
# A command that does all of the page again, which `nox -s sweep` types, too.
AGAIN = "for seed in "


@dataclass(frozen=True)
class Command:
    """A command of the page, and the lines that the page shows behind it."""

    typed: str
    shown: tuple[str, ...]


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block; one that ends with a backslash goes on in the next line."""
    typed, shown = "", list[str]()
    for line in block.text.splitlines():
        if typed.endswith("\\"):
            typed += f"\n{line}"
        elif line.startswith("$ "):
            if typed:
                yield Command(typed, tuple(shown))
            typed, shown = line.removeprefix("$ "), []
        else:
            shown.append(line)
    yield Command(typed, tuple(shown))


def script_of(page: Path, *, left_out: tuple[str, ...]) -> tuple[str, list[Command]]:
    """Return one script that writes the files of a page and runs its commands, in order."""
    lines, found = ["set -e"], list[Command]()
    for block in blocks(page):
        if block.title:
            lines.append(f"printf %s {shlex.quote(block.text)} > {block.title}")
        elif block.language == "console":
            for command in commands(block):
                if not any(each in command.typed for each in left_out):
                    lines += [f"echo '{MARK}{len(found)}'", command.typed]
                    found.append(command)
    return "\n".join(lines) + "\n", found


def plain(line: str) -> str:
    """Return a line without what differs from run to run: numbers, and how they are aligned."""
    line = re.sub(r"(plan [0-9a-f]{12}\b)|\d[\d,.]*(e[+-]\d+)?", lambda at: at[1] or "#", line)
    return re.sub(r"\s+", " ", line).strip()


def missing(shown: tuple[str, ...], printed: str) -> list[str]:
    """Return the lines shown that were not printed in this order."""
    lines = iter([plain(line) for line in printed.splitlines()])
    return [line for line in shown if line != "..." and plain(line) not in lines]


def run(script: str, folder: Path) -> list[str]:
    """Run a script in a folder; return what each command of it printed."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")
    }
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
        "COLUMNS": "100",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",  # Both streams in the order of time, as on a terminal.
    }
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return re.split(rf"^{MARK}\d*\n", ended.stdout, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        *(
            pytest.param(name, (LEFT_OUT, AGAIN), marks=pytest.mark.example, id=name)
            for name in AS_WRITTEN
        ),
        pytest.param("speech", (LEFT_OUT,), marks=pytest.mark.sweep, id="speech, all seeds"),
    ],
)
def test_it_runs_as_written(name: str, left_out: tuple[str, ...], tmp_path: Path) -> None:
    script, found = script_of(ROOT / "docs" / f"{name}.md", left_out=left_out)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "topologies").symlink_to(ROOT / "topologies")
    for command, printed in zip(found, run(script, checkout), strict=True):
        lost = missing(command.shown, printed)
        assert not lost, f"$ {command.typed}\nnot printed:\n{lost}\nprinted:\n{printed}"


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(3, marks=pytest.mark.example, id="three commands"),
        pytest.param(4, marks=pytest.mark.sweep, id="all"),
    ],
)
def test_layouts_are_to_the_last_digit_those_of_the_page(number: int, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "Qwen3-VL-8B"
    folder.mkdir(parents=True)
    config, _ = MODELS[folder.name]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = [
        command
        for block in blocks(ROOT / "docs" / "tune.md")
        if block.text.startswith("$ mimo-launch tune ")
        for command in commands(block)
        if command.shown
    ][:number]
    script = "\n".join(f"echo '{MARK}'; {command.typed}" for command in found)
    assert len(found) == number
    for command, printed in zip(found, run(f"set -e\n{script}\n", tmp_path), strict=True):
        lines = iter(printed.splitlines())
        lost = [line for line in command.shown if line != "..." and line not in lines]
        assert not lost, f"$ {command.typed}\nnot printed:\n{lost}\nprinted:\n{printed}"


def test_what_is_not_printed_is_seen() -> None:
    log = "step  9 loss 0.1\nx\ndone: 4 s"
    assert missing(("step 2  loss 1.5e-3", "...", "done: 3 s"), log) == []
    assert missing(("green", "done"), "done\ngreen") == ["done"]
    assert missing(("green",), "red") == ["green"]
    assert missing(("plan 0123456789ab",), "plan 0123456789ac") == ["plan 0123456789ab"]
