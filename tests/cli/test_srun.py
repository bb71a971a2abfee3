"""Tasks as srun starts them: one per rank, one per host, or a number that fits neither."""

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.cli.test_two_hosts import free_port
from tests.support.faulty_train import EVERY_RANK, Launcher, gone
from tests.support.two_hosts import ADDRESSES, TwoHosts
from tests.unit.test_run_folder import add_checkpoint

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.cli.launch import prepare
from mimo_launch.diag.exit_codes import ExitCode
from mimo_launch.launcher import run_folder
from mimo_launch.launcher.rank_tasks import Job, Training
from mimo_launch.launcher.rank_watcher import RankWatcher
from mimo_launch.plan.plan import Plan

SPEC = str(Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml")
LONG = ("--steps", "100000", "--set", "eval=null")


def task(job: int, number: int, *, tasks: int, nodes: int) -> Callable[[], None]:
    """Return what makes a process a task of a step."""

    def become() -> None:
        os.environ.update(
            SLURM_JOB_ID=str(job),
            SLURM_STEP_ID="0",
            SLURM_PROCID=str(number),
            SLURM_LOCALID="0",
            SLURM_NODEID=str(number * nodes // tasks),
            SLURM_STEP_NUM_TASKS=str(tasks),
            SLURM_STEP_NUM_NODES=str(nodes),
            SLURM_STEP_NODELIST="localhost,other",
        )

    return become


def srun(
    folder: Path,
    *arguments: str,
    tasks: int,
    nodes: int,
    around: Callable[[int, Callable[[], None]], Callable[[], None]] = lambda number, become: become,
    fault: tuple[str, int, int] = ("slow", 0, 0),
) -> list[Launcher]:
    """Start all tasks of a step, each on a host of its own or not."""
    job = random.randrange(1, 10**6)
    return [
        Launcher(
            folder, *fault, "train", SPEC, *arguments,
            name=f"task{number}",
            enter=around(number, task(job, number, tasks=tasks, nodes=nodes)),
        )
        for number in range(tasks)
    ]  # fmt: skip


def test_one_task_per_rank_joins(tmp_path: Path) -> None:
    ends = [launcher.finish() for launcher in srun(tmp_path, tasks=2, nodes=2)]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert "2 ranks ready" in ends[0][1]
    assert ends[1][1] == ""
    assert "".join(err for _, _, err in ends) == ""
    assert leave_in_time(tmp_path, 2)


def test_only_the_first_rank_looks_at_checkpoints(tmp_path: Path) -> None:
    """A run that is finished ends on all of them; so does one that must go on and cannot."""
    looked: list[Path] = []

    def spied(number: int, become: Callable[[], None]) -> Callable[[], None]:
        def enter() -> None:
            become()
            real = run_folder.newest_checkpoint

            def newest_checkpoint(run: Path) -> run_folder.ResumePoint | None:
                (tmp_path / f"looked-{number}").touch()
                return real(run)

            run_folder.newest_checkpoint = newest_checkpoint

        return enter

    add_checkpoint(tmp_path / "runs" / "tiny", 4)
    for arguments, code in (((), 0), (("--set", "name=other", "--resume"), 2)):
        launchers = srun(tmp_path, *arguments, tasks=2, nodes=2, around=spied)
        ends = [launcher.finish() for launcher in launchers]
        assert [found for found, _, _ in ends] == [code, code], ends
        looked += tmp_path.glob("looked-*")
    assert looked == [tmp_path / "looked-0"] * 2
    assert "runs/tiny is finished: 4 steps are done" in launchers[0].out.read_text()
    assert "there is no complete checkpoint" in launchers[0].err.read_text()
    assert launchers[1].out.read_text() + launchers[1].err.read_text() == ""


def test_one_task_per_host_launches_there(tmp_path: Path) -> None:
    """Four ranks by two tasks."""
    four = ("--set", "modules.language.ranks=1-3", "--set", "modules.language.grid={pp: 3}")
    layers = ("--set", "modules.language.model.layers=3")
    launchers = srun(tmp_path, *four, *layers, tasks=2, nodes=2)
    ends = [launcher.finish() for launcher in launchers]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert "4 ranks ready" in ends[0][1]
    assert (tmp_path / "runs" / "tiny" / "logs" / "attempt-0" / "rank-3").is_dir()


def watchers(folder: Path) -> list[Path]:
    """Return the processes that watch ranks of a run in a folder."""
    found = []
    for name in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            if name.read_text() == "mimo watcher\n" and name.with_name("cwd").readlink() == folder:
                found.append(name.parent)
    return found


def leave_in_time(folder: Path, seconds: float) -> bool:
    """Return whether the watchers leave with their ranks."""
    until = time.monotonic() + seconds
    while watchers(folder) and time.monotonic() < until:
        time.sleep(0.05)
    return not watchers(folder)


def torchrun(folder: Path, *arguments: str, fault: tuple[str, int, int]) -> list[Launcher]:
    """Start two ranks as torchrun does, but for its agent."""
    port = str(free_port())

    def become(rank: int) -> Callable[[], None]:
        def enter() -> None:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", GROUP_RANK="0",
                MASTER_ADDR="localhost", MASTER_PORT=port, TORCHELASTIC_RUN_ID="none",
            )  # fmt: skip

        return enter

    return [
        Launcher(folder, *fault, "train", SPEC, *arguments, name=f"rank{rank}", enter=become(rank))
        for rank in (0, 1)
    ]


# What ends rank 1, how it is named, and the exit code of the others.
FAULTS = {
    "kill": ("stopped first", "killed by SIGKILL", ExitCode.ELSEWHERE),
    "exit3": ("stopped first", "exited with status 3", ExitCode.FAILED),
    "raise": ("failed first", "ValueError: no such sample", ExitCode.FAILED),
    "stop": ("is suspended", "its process is stopped", ExitCode.FAILED),
    "loader": ("is stuck", "reading samples", ExitCode.FAILED),
}
STARTERS: dict[str, Callable[..., list[Launcher]]] = {
    "torchrun ... -m mimo_launch": torchrun,
    "srun ... mimo-launch": partial(srun, tasks=2, nodes=1),
    "srun ... mimo-launch train": partial(srun, tasks=2, nodes=2),
}
BY_DEFAULT = {("kill", 0), ("raise", 0), ("stop", 1), ("kill", 2), ("raise", 2)}


@pytest.mark.parametrize(
    ("fault", "program"),
    [
        pytest.param(
            fault, program, marks=() if (fault, number) in BY_DEFAULT else pytest.mark.faults
        )
        for fault in FAULTS
        for number, program in enumerate(STARTERS)
    ],
)
def test_the_rank_that_ended_the_run_is_named(tmp_path: Path, fault: str, program: str) -> None:
    """One report for each host, as a launcher gives it, though others started the ranks."""
    how, said, code = FAULTS[fault]
    arguments = (*LONG, "--set", "train.timeout=5")
    launchers = STARTERS[program](tmp_path, *arguments, fault=(fault, 1, 3))
    ends = [launcher.finish(30) for launcher in launchers]
    ended = time.time()
    err = "".join(err for _, _, err in ends)
    assert f"error: rank 1 {how} (language tp 0 cp 0 dp 0 pp 0)" in err
    assert err.count("error: ") == err.count("error: rank 1") == (2 if "train" in program else 1)
    assert said in err
    assert "   = others:  rank 0: " in err
    assert f"   = resume:  {program} " in err
    assert ends[0][0] == code
    run = launchers[0].run
    assert ended - (run / "metrics.jsonl").stat().st_mtime < 15
    assert f"error: rank 1 {how}" in (run / "failure.txt").read_text()
    files = {file.name for file in (run / "logs" / "attempt-0" / "rank-1").iterdir()}
    assert files == {"stack.txt", "stderr.log"} | ({"error.json"} if fault == "raise" else set())
    assert leave_in_time(tmp_path, 5)


def test_a_watcher_waits_for_no_rank(tmp_path: Path) -> None:
    """A look that waited for what a rank may say would keep the next rank from its answer."""
    spec = load_and_check(Path(SPEC)).spec
    assert spec is not None
    job = Job(plan=Plan.of(spec), run=tmp_path, task=Training())
    listener, rank = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    with listener, rank:
        listener.bind(f"\0mimo-launch-test-{os.getpid()}")
        listener.listen()
        watcher = RankWatcher(listener, job, lambda failed: None)
        rank.connect(listener.getsockname())
        rank.send(b"1")
        watcher._look()
        assert len(rank.recv(256).split()) == 2
        began = time.monotonic()
        watcher._look()
        assert time.monotonic() - began < 0.5
        watcher._ranks[1].close()


@pytest.mark.faults
def test_a_host_that_is_cut_off_is_named_on_both_sides(tmp_path: Path, hosts: TwoHosts) -> None:
    def around(number: int, become: Callable[[], None]) -> Callable[[], None]:
        def enter() -> None:
            hosts.enter(number)()
            become()
            os.environ["SLURM_STEP_NODELIST"] = ",".join(ADDRESSES)
            os.environ["GLOO_SOCKET_IFNAME"] = f"cable{number}"

        return enter

    launchers = srun(tmp_path, *LONG, tasks=2, nodes=2, around=around)
    launchers[0].wait_for_step(3)
    hosts.cut()
    began = time.monotonic()
    ends = [launcher.finish() for launcher in launchers]
    assert time.monotonic() - began < 40
    assert [code for code, _, _ in ends] == [ExitCode.ELSEWHERE] * 2, ends
    assert "(node 1, rank 1) does not answer" in ends[0][2]
    assert "(node 0, rank 0) does not answer" in ends[1][2]
    assert leave_in_time(tmp_path, 10)


def struck(number: int, become: Callable[[], None], by: signal.Signals) -> Callable[[], None]:
    """Let the first task end by a signal before its run begins."""

    def enter() -> None:
        become()
        if number == 0:
            prepare._nothing_to_run = lambda *_: os.kill(os.getpid(), by)

    return enter


def test_a_rank_that_dies_before_the_run_begins_is_named(tmp_path: Path) -> None:
    """The first one is at work, so the others wait for it."""
    launchers = srun(tmp_path, tasks=2, nodes=1, around=partial(struck, by=signal.SIGKILL))
    ends = [launcher.finish(20) for launcher in launchers]
    assert [code for code, _, _ in ends] == [-signal.SIGKILL, ExitCode.ELSEWHERE], ends
    err = "".join(err for _, _, err in ends)
    assert ("error: rank 0 stopped first" in err, "= files" in err) == (True, False)
    assert "cannot reach" not in err
    assert leave_in_time(tmp_path, 2)


def test_a_signal_before_the_run_begins_is_no_failure(tmp_path: Path) -> None:
    """Whoever started the ranks ends them: torchrun after one that died too early for a watcher."""
    launchers = srun(tmp_path, tasks=2, nodes=1, around=partial(struck, by=signal.SIGTERM))
    until = time.monotonic() + 20
    while not gone(launchers[0].pid) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(launchers[1].pid, signal.SIGTERM)
    ends = [launcher.finish(20) for launcher in launchers]
    assert [code for code, _, _ in ends] == [-signal.SIGTERM] * 2
    assert leave_in_time(tmp_path, 2)
    # torch may warn that the store of rank 0 is gone.
    said = [line for each in launchers for line in each.err.read_text().splitlines()]
    assert not [line for line in said if line.startswith(("error", "   = "))]
    assert not (launchers[0].run / "failure.txt").exists()


def test_code_that_leaves_a_rank_without_a_watcher_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with `sys.exit(0)`, which would look like success."""
    monkeypatch.setattr("mimo_launch.launcher.watched_rank.watched_rank", lambda *_: None)
    launchers = torchrun(tmp_path, *LONG, fault=("leave", EVERY_RANK, 3))
    ends = [launcher.finish(30) for launcher in launchers]
    assert [code for code, _, _ in ends] == [ExitCode.FAILED] * 2, ends
    assert all("SystemExit: 0" in err for _, _, err in ends)


def test_another_number_of_tasks_is_a_usage_error(tmp_path: Path) -> None:
    for launcher in srun(tmp_path, tasks=3, nodes=2):
        code, out, err = launcher.finish()
        assert (code, out) == (2, "")
        assert "srun started 3 tasks on 2 hosts" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_rank_that_joined_obeys_a_signal(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """All ranks stop after the same step, though only one got it."""
    launchers = srun(tmp_path, *LONG, "--set", "checkpoint={every: 1000}", tasks=2, nodes=2)
    launchers[0].wait_for_step(2)
    os.kill(launchers[1].pid, number)
    ends = [launcher.finish() for launcher in launchers]
    assert [found for found, _, _ in ends] == [code, code]
    assert f"stopped by {number.name} after step" in ends[0][1]
    assert all(gone(launcher.pid) for launcher in launchers)
    assert leave_in_time(tmp_path, 2)
    assert not (launchers[0].run / "failure.txt").exists()
