"""`doctor`: what a host has for training, and what it lacks."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mimo_launch.launcher import host_checks

Cli = Callable[[str], tuple[int, str, str]]


def test_a_host_on_which_these_tests_run_is_fit_for_training(run_cli: Cli, tmp_path: Path) -> None:
    code, out, err = run_cli(f"doctor --runs {tmp_path / 'new'} --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    checks = {each["name"]: each for each in found["checks"]}
    names = ("python", "torch", "memory", "open files", "shared memory", "loopback", "disk")
    assert found["works"]
    assert [checks[name]["verdict"] for name in names] == ["ok"] * len(names)


def test_what_is_missing_is_said_with_a_remedy_and_ends_with_1(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch that cannot be imported; a socket that no host can open."""

    def refuse(address: tuple[str, int]) -> None:
        raise OSError("no such device")

    broken = host_checks._Torch(fault="ImportError: libcudart.so")
    monkeypatch.setattr(host_checks, "_ask_torch", lambda: broken)
    monkeypatch.setattr(host_checks.socket, "create_server", refuse)
    code, out, _ = run_cli(f"doctor --runs {tmp_path}")
    assert code == 1
    lines = [line.split() for line in out.splitlines()]
    assert ["error", "torch", "ImportError:", "libcudart.so"] in lines
    assert "= help: bring it up with `ip link set lo up`" in out
    assert out.endswith("training would not work here: torch, loopback\n")
