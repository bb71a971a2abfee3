"""What is compared of two results, and which files are refused before anything is measured."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mimo_launch.cli.bench_screen import (
    BenchScreen,
    NotAResult,
    compared,
    compared_lines,
    load_earlier,
)
from mimo_launch.cli.shared.console import Console
from mimo_launch.train.events import BenchFinished

RECORD: dict[str, Any] = {
    "version": 1,
    "command": "mimo-launch bench a.yaml",
    "date": "2026-01-02",
    "plan_hash": "221bca0da48f",
    "machine": {
        "device": "NVIDIA H200",
        "device_kind": "cuda",
        "hosts": 1,
        "versions": {"torch": "2.11", "nccl": "2.28", "transformer-engine": None},
    },
    "step_s": {"median": 0.5},
    "speed": {"tokens_per_s_per_rank": 100.0},
}


def written(folder: Path, record: Any) -> Path:
    path = folder / "old.json"
    path.write_text(json.dumps(record))
    return path


def changed(**values: Any) -> dict[str, Any]:
    return {**copy.deepcopy(RECORD), **values}


def test_a_comparison_is_in_the_json_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = load_earlier(written(tmp_path, RECORD))
    screen = BenchScreen(Console(), steps=1, as_json=True, plain=True, old=old)
    screen(BenchFinished(record=RECORD))
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("compared")["step_time"] == 1
    assert printed == RECORD


def test_tokens_of_language_are_compared_if_both_results_say_them(tmp_path: Path) -> None:
    """The part of a text-only twin's throughput that is left with encoders."""
    twin = changed(speed={"tokens_per_s_per_rank": 80.0, "language_tokens_per_s_per_rank": 80.0})
    new = changed(speed={"tokens_per_s_per_rank": 60.0, "language_tokens_per_s_per_rank": 76.0})
    found = compared(new, load_earlier(written(tmp_path, twin)))
    assert "  language tokens/s per GPU x 0.950" in compared_lines(found, each="GPU")
    old = compared(new, load_earlier(written(tmp_path, RECORD)))
    assert old["language_tokens_per_s_per_rank"] is None
    assert not any("language" in line for line in compared_lines(old, each="GPU"))


def test_only_what_differs_is_listed(tmp_path: Path) -> None:
    old = load_earlier(written(tmp_path, RECORD))
    versions = {"torch": "2.13.0", "nccl": "2.28", "transformer-engine": "2.5"}
    new = changed(
        plan_hash="000000000000",
        machine={**RECORD["machine"], "versions": versions},
        step_s={"median": 0.4},
        speed={"tokens_per_s_per_rank": 125.0},
    )
    found = compared(new, old)
    assert found["changed"] == {
        "plan": {"old": "221bca0da48f", "new": "000000000000"},
        "torch": {"old": "2.11", "new": "2.13.0"},
        "transformer-engine": {"old": None, "new": "2.5"},
    }
    assert list(compared_lines(found, each="GPU")) == [
        "against mimo-launch bench a.yaml of 2026-01-02:",
        "  step time x 0.800",
        "  tokens/s per GPU x 1.250",
        "  plan 221bca0da48f -> 000000000000",
        "  torch 2.11 -> 2.13.0",
        "  transformer-engine none -> 2.5",
    ]
    assert compared(RECORD, old)["changed"] == {}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([], "it has no `version`"),
        (changed(version=2), "its version is 2, and this compares with 1"),
        ({"version": 1, "speed": RECORD["speed"]}, "it has no `command`"),
        (changed(date=None), "`date` is nothing"),
        (changed(step_s={"median": 0}), "`step_s.median` is 0; it must be"),
        (changed(step_s={"median": float("nan")}), "`step_s.median` is nan; it must be"),
        (changed(speed={"tokens_per_s_per_rank": "fast"}), "is `fast`, text"),
        (changed(machine={"device": "A", "hosts": 1}), "it has no `machine.versions`"),
    ],
)
def test_what_a_file_lacks_is_named(tmp_path: Path, record: Any, said: str) -> None:
    with pytest.raises(NotAResult) as error:
        load_earlier(written(tmp_path, record))
    assert str(error.value).startswith(f"{tmp_path}/old.json is no result of `bench --json`: ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda path: None, ": no such file or directory"),
        (lambda path: path.mkdir(), ": is a directory"),
        (lambda path: path.write_text("a: 1"), " is not JSON: "),
        (lambda path: path.write_bytes(b"\xff"), " is not JSON: "),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, prepare: Callable[[Path], object], said: str
) -> None:
    prepare(tmp_path / "old.json")
    with pytest.raises(NotAResult, match="old.json" + said):
        load_earlier(tmp_path / "old.json")
