"""`doctor`: what a host has for training, and what it lacks."""

import json
import resource
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mimo_launch.launcher import forking, host_checks

Cli = Callable[[str], tuple[int, str, str]]


def test_a_host_on_which_these_tests_run_is_fit_for_training(run_cli: Cli, tmp_path: Path) -> None:
    code, out, err = run_cli(f"doctor --runs {tmp_path / 'new'} --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    checks = {each["name"]: each for each in found["checks"]}
    names = ("python", "torch", "memory", "open files", "shared memory", "loopback", "disk")
    assert {"processes", "locked memory"} <= checks.keys()
    assert found["works"]
    assert [checks[name]["verdict"] for name in names] == ["ok"] * len(names)


def test_a_file_where_runs_would_be_kept_is_said(run_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    code, out, _ = run_cli(f"doctor --json --runs {tmp_path / 'taken' / 'runs'}")
    [disk] = [each for each in json.loads(out)["checks"] if each["name"] == "disk"]
    assert (code, disk["verdict"]) == (1, "error")
    assert disk["found"] == f"{tmp_path / 'taken'} is not a folder"


def limits(monkeypatch: pytest.MonkeyPatch, **soft: int) -> None:
    """Have the host allow no more than this of a resource, by the name of its limit."""
    true = resource.getrlimit
    known = {getattr(resource, f"RLIMIT_{name}"): size for name, size in soft.items()}
    monkeypatch.setattr(
        host_checks.resource,
        "getrlimit",
        lambda kind: (known[kind], known[kind]) if kind in known else true(kind),
    )


def test_limits_that_end_runs_are_said_with_a_remedy(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads count as processes; adapters of InfiniBand register memory that must be locked."""
    limits(monkeypatch, NPROC=50, MEMLOCK=1 << 16)
    has_gpus = host_checks._Torch(version="2.11.0", nccl="2.28.9", gpus=(("NVIDIA H200", 1 << 37),))
    monkeypatch.setattr(host_checks, "_ask_torch", lambda: has_gpus)
    code, out, _ = run_cli(f"doctor --runs {tmp_path} --json")
    checks = {each["name"]: each for each in json.loads(out)["checks"]}
    assert (checks["processes"]["verdict"], checks["processes"]["found"]) == ("warning", "50")
    assert "`ulimit -u`" in checks["processes"]["help"]
    assert checks["locked memory"]["verdict"] == "warning"
    assert "`ulimit -l unlimited`" in checks["locked memory"]["help"]
    errors = [name for name, each in checks.items() if each["verdict"] == "error"]
    assert (code, errors) == (0, [])
    monkeypatch.setattr(host_checks, "_ask_torch", lambda: replace(has_gpus, gpus=()))
    without = json.loads(run_cli(f"doctor --runs {tmp_path} --json")[1])["checks"]
    assert [each["name"] for each in without if each["verdict"] == "warning"] == ["processes"]


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


def test_a_torch_that_never_answers_is_said(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may hang as soon as it is asked for GPUs."""
    monkeypatch.setattr(host_checks, "_look", threading.Event().wait)
    monkeypatch.setattr(forking, "ANSWER_SECONDS", 2.0)
    code, out, _ = run_cli(f"doctor --runs {tmp_path} --json")
    [torch] = [each for each in json.loads(out)["checks"] if each["name"] == "torch"]
    assert (code, torch["verdict"]) == (1, "error")
    words = "importing it and asking it for GPUs did not end within 2 s; it is at wait "
    assert torch["found"].startswith(words)
    assert "`nvidia-smi`" in torch["help"]
