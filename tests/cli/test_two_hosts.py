"""Two launchers, each with half of the ranks: on two hosts made of namespaces, or on this one."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.faulty_train import Launcher, gone
from tests.support.two_hosts import ADDRESSES, TwoHosts

from mimo_launch.cli.app import run
from mimo_launch.diag.exit_codes import ExitCode
from mimo_launch.launcher import host_rendezvous

SPEC = str(Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml")
# Groups of tp and of dp, all but one across both hosts.
FOUR_RANKS = (
    "--set", "modules.vision.ranks=0-3", "--set", "modules.vision.grid.dp=4",
    "--set", "modules.language.ranks=0-3", "--set", "modules.language.grid={tp: 2, dp: 2}",
)  # fmt: skip
LONG = ("--steps", "100000", "--set", "eval=null")
CHECKPOINTS = ("--set", "checkpoint={every: 2, keep: 2, asynchronous: false}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Start = Callable[..., list[Launcher]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start both launchers, on this host by default."""

    def call(
        *arguments: str,
        fault: tuple[str, int, int] = ("slow", 0, 0),
        on: TwoHosts | None = None,
        folders: tuple[Path, Path] = (tmp_path, tmp_path),
        own: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
        enter: Callable[[], None] = lambda: None,
    ) -> list[Launcher]:
        endpoint = f"{ADDRESSES[0] if on else '127.0.0.1'}:{free_port()}"
        nodes = ("--nnodes", "2", "--rdzv-endpoint", endpoint, "--rdzv-id", "test")
        return [
            Launcher(
                folders[node], *fault, "train", SPEC, *arguments, *own[node], *nodes,
                "--node-rank", str(node), name=f"node{node}",
                enter=on.enter(node) if on else enter,
            )
            for node in (0, 1)
        ]  # fmt: skip

    return call


def finish(launchers: list[Launcher]) -> list[tuple[int | None, str, str]]:
    return [launcher.finish() for launcher in launchers]


def losses(folder: Path) -> list[float | None]:
    lines = (folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record.get("loss") for record in records if "resumed_from" not in record]


def test_two_hosts_train_as_one_does(hosts: TwoHosts, start: Start, tmp_path: Path) -> None:
    ends = finish(start(*FOUR_RANKS, on=hosts))
    assert [code for code, _, _ in ends] == [0, 0], ends
    folder = tmp_path / "alone"
    folder.mkdir()
    alone = Launcher(folder, "slow", 0, 0, "train", SPEC, *FOUR_RANKS)
    assert alone.finish()[0] == 0
    assert losses(tmp_path) == losses(folder)
    assert "4 ranks ready" in ends[0][1]
    assert ends[1][1] == ""
    logs = tmp_path / "runs" / "tiny" / "logs" / "attempt-0"
    assert {path.name for path in logs.iterdir()} == {"rank-0", "rank-1", "rank-2", "rank-3"}


@pytest.mark.faults
def test_a_host_that_is_cut_off_ends_on_both_sides(hosts: TwoHosts, start: Start) -> None:
    launchers = start(*LONG, on=hosts)
    launchers[0].wait_for_step(3)
    workers = [pid for launcher in launchers for pid in launcher.workers()]
    hosts.cut()
    began = time.monotonic()
    ends = finish(launchers)
    assert time.monotonic() - began < 30
    assert [code for code, _, _ in ends] == [75, 75]
    assert "(node 1, rank 1) does not answer" in ends[0][2]
    assert "(node 0, rank 0) does not answer" in ends[1][2]
    assert all(gone(worker) for worker in workers)


def test_a_rank_of_another_host_is_named_and_all_hosts_start_again(start: Start) -> None:
    launchers = start(*CHECKPOINTS, "--steps", "6", "--max-restarts", "1", fault=("kill", 1, 6))
    (code0, _, err0), (code1, _, err1) = finish(launchers)
    assert (code0, code1) == (0, 0), err0 + err1
    for err in (err0, err1):
        assert err.count("error: rank 1 stopped first (language") == 1
        assert "(node 1)" in err
        assert "restart 1: the run resumes after step 4" in err
    assert "   = said:    killed by SIGKILL" in err0
    assert "shown by node 0, and in runs/tiny/failure.txt" in err1
    assert [record.get("step") for record in launchers[0].metrics()] == [1, 2, 3, 4, 5, 6, 6]


@pytest.mark.faults
def test_a_signal_to_one_host_stops_all(start: Start) -> None:
    launchers = start(*LONG, *CHECKPOINTS)
    launchers[0].wait_for_step(3)
    os.kill(launchers[1].pid, signal.SIGTERM)
    ends = finish(launchers)
    assert [code for code, _, _ in ends] == [143, 143]
    assert "stopped by SIGTERM after step" in ends[0][1]


@pytest.mark.faults
def test_a_launcher_that_is_killed_ends_the_others(start: Start) -> None:
    launchers = start(*LONG)
    launchers[0].wait_for_step(3)
    os.kill(launchers[0].pid, signal.SIGKILL)
    code, _, err = launchers[1].finish()
    assert code == ExitCode.ELSEWHERE
    assert "(node 0, rank 0) does not answer" in err


def test_hosts_without_a_common_run_folder_do_not_start(start: Start, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()

    def be_quick() -> None:
        host_rendezvous.FOLDER_SECONDS = 0.5

    for code, _, err in finish(start(folders=(tmp_path, other), enter=be_quick)):
        assert code == 1
        assert "does not see the run folder runs/tiny of node 0" in err
        assert "(node 1, rank 1)" in err


@pytest.mark.faults
@pytest.mark.parametrize("settings", [("--set", "optimizer.lr=0.5"), ("--profile", "3")])
def test_hosts_with_other_settings_do_not_start(start: Start, settings: tuple[str, str]) -> None:
    for code, _, err in finish(start(own=((), settings))):
        assert code == 1
        assert "has another plan" in err


@pytest.mark.faults
def test_a_host_that_does_not_come_is_named(tmp_path: Path) -> None:
    nodes = ("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    short = ("--set", "train.timeout=1")
    for node, words in (
        (0, "node 1 of 2 did not connect within 1 s"),
        (1, "nothing has answered at"),
    ):
        launcher = Launcher(
            tmp_path, "slow", 0, 0, "train", SPEC, *short, *nodes, "--node-rank", str(node)
        )
        code, _, err = launcher.finish()
        assert code == 1
        assert words in err


@pytest.mark.faults
def test_a_finished_run_ends_on_all_hosts(start: Start) -> None:
    assert [code for code, _, _ in finish(start(*CHECKPOINTS))] == [0, 0]
    (code0, out0, _), (code1, _, err1) = finish(start(*CHECKPOINTS))
    assert (code0, code1) == (0, 0)
    assert "is finished: 4 steps are done" in out0
    assert "node 0 has nothing to run" in err1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--nnodes", "2"), "--nnodes 2 needs the HOST:PORT"),
        (("--nnodes", "2", "--rdzv-endpoint", "host0"), "'host0' is not HOST:PORT"),
        (("--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "h:1"), "2 is not below"),
        (("--nnodes", "3", "--rdzv-endpoint", "h:1"), "2 ranks of the spec do not spread evenly"),
        (("--nnodes", "2", "--nproc", "2", "--rdzv-endpoint", "h:1"), "the job has"),
    ],
)
def test_hosts_that_cannot_be_are_usage_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", SPEC, *options]) == 2
    assert words in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
