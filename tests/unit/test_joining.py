"""What torchrun and srun say about this process."""

from pathlib import Path

import pytest

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.cli.app import run
from mimo_launch.cli.launch.origin import Origin, node_place, origin_of
from mimo_launch.launcher.torchrun_slurm import (
    Joined,
    NodelistError,
    NodePlace,
    Task,
    WrongEnvironment,
    WrongTasks,
    expand,
    slurm_environment,
    slurm_place,
    slurm_task,
    torchrun_rank,
)
from mimo_launch.launcher.worker_logs import parse_ranks

SPEC = Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("gpu[8-10],cpu1", ["gpu8", "gpu9", "gpu10", "cpu1"]),
        ("r[1-2]n[0,3]-ib", ["r1n0-ib", "r1n3-ib", "r2n0-ib", "r2n3-ib"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, hosts: list[str]) -> None:
    assert list(expand(text)) == hosts


@pytest.mark.parametrize("text", ["", "node[1-", "node[a-b]", "a,,b", "node]1["])
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(NodelistError):
        list(expand(text))


def srun(**other: str) -> dict[str, str]:
    """Task 5 of 8 on 2 hosts."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "gpu[07-08]",
        **other,
    }


def task(**other: str) -> Task:
    found = slurm_task(srun(**other))
    assert found is not None
    return found


def test_one_task_per_rank_joins_as_that_rank() -> None:
    assert slurm_place(task(), 8) == Joined(5, 8)
    environment = slurm_environment(task())
    assert (environment["RANK"], environment["WORLD_SIZE"]) == ("5", "8")
    assert (environment["LOCAL_RANK"], environment["MASTER_ADDR"]) == ("1", "gpu07")
    assert environment["MASTER_PORT"] == slurm_environment(task(SLURM_PROCID="0"))["MASTER_PORT"]
    assert 1024 < int(environment["MASTER_PORT"]) < 32768


def test_one_task_per_host_launches_there() -> None:
    one = task(SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="1")
    place = slurm_place(one, 8)
    assert place == NodePlace(1, 2, f"gpu07:{one.port}", "4711.0")


def test_one_task_alone_launches_by_itself() -> None:
    one = task(SLURM_STEP_NUM_TASKS="1", SLURM_STEP_NUM_NODES="1", SLURM_PROCID="0")
    assert slurm_place(one, 8) is None


def test_another_number_of_tasks_is_refused() -> None:
    with pytest.raises(WrongTasks, match=r"4 tasks on 2 hosts.* 8 \(one per rank\)"):
        slurm_place(task(SLURM_STEP_NUM_TASKS="4"), 8)


def test_a_batch_script_without_srun_is_no_task() -> None:
    batch = {k: v for k, v in srun().items() if not k.startswith("SLURM_STEP")}
    assert slurm_task({**batch, "SLURM_NTASKS": "8"}) is None
    assert slurm_task({}) is None


def test_steps_of_one_job_meet_at_different_ports() -> None:
    assert task().port != task(SLURM_STEP_ID="1").port


RANK_3 = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "host0", "MASTER_PORT": "29500"}


def test_torchrun_names_rank_and_world() -> None:
    assert torchrun_rank(RANK_3) == Joined(3, 4)
    assert torchrun_rank({"RANK": "3"}) is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"RANK": "abc"}, "RANK=abc is not a number"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE= is not a number"),
        ({"RANK": "4"}, "RANK=4 is not below WORLD_SIZE=4"),
        ({"MASTER_ADDR": ""}, "RANK=3 and WORLD_SIZE=4 are set, MASTER_ADDR not"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http is not a number"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK=-1 is not a number"),
    ],
)
def test_an_environment_that_no_rank_has_is_refused(other: dict[str, str], words: str) -> None:
    with pytest.raises(WrongEnvironment, match=f"^{words}; .*unset RANK and WORLD_SIZE"):
        torchrun_rank(RANK_3 | other)


def test_an_environment_that_no_rank_has_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (RANK_3 | {"RANK": "abc"}).items():
        monkeypatch.setenv(name, value)
    assert run(["train", str(SPEC)]) == 2
    assert "RANK=abc is not a number" in capsys.readouterr().err


@pytest.mark.parametrize("hosts", [1, 2])
def test_hosts_that_are_asked_for_win_over_the_rank_of_a_pod(
    monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    """A pod of a training operator has RANK and WORLD_SIZE, which count pods."""
    for name, value in RANK_3.items():
        monkeypatch.setenv(name, value)
    spec = load_and_check(SPEC).spec
    assert spec is not None
    place = node_place(hosts, hosts - 1, "host0:29500", "run")
    found = origin_of(Origin(place=place, launches=True), spec)
    assert found == Origin(place=place, world_size=2)
    assert origin_of(Origin(), spec).joined == Joined(3, 4)


def test_ranks_to_show_are_ranges() -> None:
    assert parse_ranks("0,5-7") == {0, 5, 6, 7}
    for wrong in ("", "a", "3-1", "1,,2", "-1"):
        with pytest.raises(ValueError, match="is not a rank"):
            parse_ranks(wrong)
